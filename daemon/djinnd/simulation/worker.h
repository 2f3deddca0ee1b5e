// SPDX-License-Identifier: Apache-2.0

// Worker: a simulated djinn-worker. It answers commands in their order, asks for memory and gives
// it back, runs what clients submit; it may die at any of these, with any of them unanswered, hang,
// or lie: say what is not so, of others' sessions and models too.
//
//   granted   what it knows that it was granted, and has not given back: djinnd's accounts have at
//             least as much, for as long as it lives
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/simulation/attached_session.h"
#include "daemon/djinnd/simulation/lane.h"
#include "daemon/djinnd/simulation/processes.h"
#include "ipc/messages.h"
#include "ipc/socket.h"
#include "kernel/base/device_id.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/gc/fault_points.h"

namespace djinn::daemon::simulation {

class Worker final : public Child {
 public:
  // One that hangs, and yet has a processor for such a part of the time.
  static constexpr uint64_t kHeldUpOneIn = 2;

  Worker(Machine& machine, Loop& loop, DeviceId device, pid_t pid, Fd channel);

  void end() override;
  [[nodiscard]] uint64_t cpu_ns() const override;

  [[nodiscard]] DeviceId device() const { return device_; }
  [[nodiscard]] const std::map<SessionId, AttachedSession>& sessions() const { return sessions_; }
  [[nodiscard]] const Lane& lane() const { return lane_; }
  // Of its slab, unless it asks for another: the former serves nothing then.
  [[nodiscard]] uint64_t slab_bytes() const { return asks_for_slab() ? 0 : slab_bytes_; }
  [[nodiscard]] uint64_t heap_bytes() const { return heap_bytes_; }
  // Models whose bytes it maps.
  [[nodiscard]] const std::set<ModelId>& mapped() const { return models_; }
  // What it knows, and what djinnd knows of it, need not agree any more.
  [[nodiscard]] bool has_lied() const { return has_lied_; }

 private:
  struct Asked {
    ipc::GrantKind kind;
    SessionId session;
    SequenceHandle sequence;
    uint64_t bytes;
    bool returns = false;  // for a group that is to come back from disk
    std::vector<ipc::MemoryRange> places = {};
  };

  void readable();
  void work();
  void live();
  void work_soon();
  // Whether it dies here instead.
  bool dies();
  void die();
  void say(const ipc::WorkerEvent& event);
  void answer(const ipc::Datagram& message);
  void answer_body(const ipc::AttachSession& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::DetachSession& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::AddModel& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::DropModel& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::ParkModel& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::ModelLost& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::AddProgram& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::DropProgram& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::AddSequence& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::SpillSequence& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::ReleaseSequence& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::GrantAnswer& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::GiveMemory& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::GetWorkerStats& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::WakeLane& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::JoinBaton& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::GetLaneSchedule& c, const std::vector<Fd>& fds);
  void answer_body(const ipc::TrimRefs& c, const std::vector<Fd>& fds);

  // --- what it does unasked
  [[nodiscard]] bool asks_for(SequenceHandle sequence) const;
  [[nodiscard]] bool asks_for_slab() const;
  [[nodiscard]] bool is_taken(SessionId id, const AttachedSession& session,
                              ipc::MemoryRange place) const;
  void ask(const Asked& asked);
  void ask_for_something();
  void ask_for_refs(SessionId id, const AttachedSession& session, uint64_t bytes);
  void give_back_refs(SessionId id, AttachedSession& session);
  void give_something_back();
  void want_a_model();
  void lie();
  [[nodiscard]] ipc::WorkerEvent some_event();
  // Of any worker, or of nobody.
  [[nodiscard]] SessionId some_session();
  [[nodiscard]] ModelId some_model();
  [[nodiscard]] SequenceHandle some_sequence(SessionId session);
  [[nodiscard]] uint64_t some_bytes();
  void give_back_heap();
  void bring_back();

  Machine& machine_;
  const DeviceId device_;  // of whose workers it is one
  Fd channel_;
  bool ending_ = false;
  bool ready_ = false;
  bool has_lied_ = false;
  bool hangs_ = false;
  uint64_t computes_one_in_ = 0;  // while it hangs: such a part of the time; 0: not at all
  uint64_t hangs_since_ns_ = 0;
  std::deque<ipc::Datagram> commands_;
  std::map<SessionId, AttachedSession> sessions_;
  Lane lane_;
  std::set<ModelId> models_;
  std::set<ModelId> parked_;
  std::set<ModelId> wanted_;
  std::map<uint64_t, Asked> asked_;
  uint64_t last_request_ = 0;
  uint64_t slab_bytes_ = 0;
  uint64_t heap_bytes_ = 0;
  gc::FaultPoints faults_;
  Poll poll_;
  Timer work_;
  Timer live_;
};

}  // namespace djinn::daemon::simulation
