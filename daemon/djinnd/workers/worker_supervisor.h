// SPDX-License-Identifier: Apache-2.0

// WorkerSupervisor: sees to it that one trust domain has a worker on one device, and tells what it
// does.
//
//   absent -> waiting        somebody needs a worker; one is asked of the pool
//   waiting -> ready         a warm one came; the listener attaches everything to it
//   ready -> backing_off     it died
//   backing_off -> waiting   after no time at first, longer when nothing gets done in between
//   any -> absent            retired; from backing_off also dismissed, unless needed meanwhile
//
// Commands are sent to a ready worker only: whoever sends keeps what it wants in a table of its
// own, and sends it again when worker_ready() is called.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/workers/child_process.h"
#include "daemon/djinnd/workers/recovery.h"
#include "daemon/djinnd/workers/spare_pool.h"
#include "daemon/djinnd/workers/worker_counts.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "ipc/messages.h"
#include "kernel/base/clock.h"
#include "kernel/base/owned_state.h"

namespace djinn::daemon {

enum class WorkerPhase : uint8_t { kAbsent, kWaiting, kReady, kBackingOff };
[[nodiscard]] bool may_follow(WorkerPhase from, WorkerPhase to);

// A command that the worker owes an answer to.
struct OwedAnswer {
  enum class Kind : uint8_t {
    kAttachSession,
    kDetachSession,
    kAddModel,
    kDropModel,
    kParkModel,
    kAddSequence,
    kReleaseSequence,
    kStats,
    kWakeLane,
    kTrimRefs,
    kSchedule
  };
  Kind kind = Kind::kStats;
  uint64_t id = 0;
  SequenceHandle sequence;
  friend bool operator==(const OwedAnswer&, const OwedAnswer&) = default;
};
// Nothing for commands that are not answered, and events that answer none.
[[nodiscard]] std::optional<OwedAnswer> owed_for(const ipc::WorkerCommand& command);
[[nodiscard]] std::optional<OwedAnswer> answered_by(const ipc::WorkerEvent& event);
// Of what a dead worker left unanswered, the oldest first: what it may have died of. What the lane
// is only asked may wait behind a step for as long as that takes, whoever asks it and how often.
[[nodiscard]] std::optional<OwedAnswer> suspect_of(const std::deque<OwedAnswer>& owed);

// What djinnd reads of a lane in memory that it shares with the worker alone: a client's lies kill
// nobody's worker.
struct LaneActivity {
  bool in_step = false;
  uint64_t count = 0;  // changes with each operator and step
};

// It looked at a graph as it died.
struct DeathAdmitting {
  ProgramId program;  // invalid: nobody had heard of which
  // It is known that this was why. Else a step may have been, or somebody outside.
  bool was_why = false;
  // It was killed because a part of the graph went on computing for so long.
  std::optional<uint64_t> overran_ms;
};

struct WorkerDeath {
  std::optional<OwedAnswer> suspect;  // as suspect_of()
  std::vector<DeathAdmitting> admitting;
  // A graph is known to have been why: nothing that ran meanwhile was.
  [[nodiscard]] bool was_a_graphs() const {
    return std::ranges::any_of(admitting, &DeathAdmitting::was_why);
  }
  // It was killed because one operator of its step went on computing for so long.
  std::optional<uint64_t> overran_ms;
};

class WorkerListener {
 public:
  virtual ~WorkerListener() = default;
  virtual void worker_ready(WorkerKey key) = 0;
  virtual void worker_said(WorkerKey key, const ipc::WorkerEvent& event) = 0;
  // Gives whether anything of its sessions was committed since the death before.
  virtual bool worker_died(WorkerKey key, const WorkerDeath& death) = 0;
};

class WorkerSupervisor {
 public:
  WorkerSupervisor(Loop& loop, const Clock& clock, SparePool& spares, WorkerListener& listener,
                   Events& events, WorkerKey key, uint64_t hang_timeout_ms);

  // Requests for memory that a worker may have unanswered, thrice what all its sessions need for
  // their refs and one growing group each; all that wait are gone through whenever memory changes.
  static constexpr size_t kAsksMax = 1024;

  // Sees that there is, or will be, a worker.
  void need();
  // Kills the worker, if any; none follows until need(). Waits until it is dead.
  void retire();
  // Kills the ready worker, whose memory others want; none follows unless need() is called from now
  // on. It serves until it is dead, and who comes meanwhile is served by the next: nobody is to
  // blame for this death.
  void dismiss();
  // Ends what there is or is to come, without waiting for it: a device that is lost may keep a
  // process that is killed. None follows unless need() is called from now on.
  void abandon(const char* why);
  // Of the present worker, which has not ended yet.
  [[nodiscard]] bool is_dismissed() const { return dismissed_; }
  [[nodiscard]] bool is_killed() const { return killed_; }  // for that or another reason

  [[nodiscard]] bool ready() const { return phase_ == WorkerPhase::kReady; }
  [[nodiscard]] bool absent() const { return phase_ == WorkerPhase::kAbsent; }
  // There is none, and one is to follow.
  [[nodiscard]] bool is_coming() const;
  // Does nothing while there is no ready worker.
  void send(const ipc::WorkerCommand& command, std::span<const int> fds = {});
  void kill(const char* why);

  // Sees that the lane, which may sleep, looks at all sessions again.
  void wake_lane();
  // Looks for a hang, and asks the lane for a sign of life where it has shown none since the last
  // look. due_ms: how long after that this one was to come. Gives whether there is work, so that
  // the next look is due soon.
  bool look(const LaneActivity& lane, uint64_t due_ms);

  [[nodiscard]] ipc::WorkerReport report() const;
  void note_stats(const ipc::WorkerStats& stats) { counts_.on_worker_stats(stats); }
  // The counts of all its workers so far.
  [[nodiscard]] ipc::WorkerStats counts() const { return counts_.total(); }
  [[nodiscard]] uint32_t restarts() const { return restarts_; }
  [[nodiscard]] uint32_t threads() const { return ready_.threads; }

 private:
  // What one of its desks does.
  struct Looked {
    explicit Looked(uint64_t timeout_ns) : watch(timeout_ns) {}
    ProgramId at;         // invalid: at none
    uint64_t heard = 0;   // how often
    uint64_t cpu_ns = 0;  // when it was heard of last
    bool overran = false;
    HangWatch watch;
  };
  [[nodiscard]] std::vector<DeathAdmitting> deaths_admitting() const;
  void note_look(const ipc::ProgramLookedAt& event);
  // Gives whether the request is to be served.
  bool note_ask(const ipc::GrantRequest& event);
  void ask_for_worker();
  void adopt(ReadyChild child);
  void heard(const ipc::Datagram& message);
  void exited();
  // Tells of it, and finds who may be to blame.
  WorkerDeath death_of_its_own();
  // Since it had used that much processor time it has used more than little.
  [[nodiscard]] bool computes_since(uint64_t cpu_ns) const;
  void emit(EventKind kind, std::string text);

  Loop& loop_;
  const Clock& clock_;
  SparePool& spares_;
  WorkerListener& listener_;
  Events& events_;
  const WorkerKey key_;
  uint64_t hang_timeout_ms_;
  OwnedState<WorkerPhase, WorkerSupervisor> phase_;
  std::unique_ptr<ChildProcess> process_;
  ChildReady ready_;
  std::deque<OwedAnswer> owed_;
  std::set<uint64_t> asks_;  // numbers of requests for memory that are not answered yet
  uint64_t wakes_ = 0;       // heard of the lane's own thread
  uint64_t answers_ = 0;     // other events heard that show work, which counts do not
  uint32_t restarts_ = 0;
  bool ever_ready_ = false;
  bool killed_ = false;  // the present one, which has not ended yet
  bool dismissed_ = false;
  bool needed_again_ = false;  // since it was dismissed
  WorkerCounts counts_;
  BackOff back_off_;
  uint64_t count_seen_ = 0;
  uint64_t cpu_seen_ns_ = 0;  // when the step in flight last showed life
  std::optional<uint64_t> overran_ms_;
  OwnTime own_time_;
  std::array<Looked, ipc::kAdmissionDesks> looked_;
  HangWatch step_watch_;
  HangWatch lane_watch_;
  HangWatch command_watch_;
  Timer back_off_timer_;
  std::shared_ptr<bool> wanted_ = std::make_shared<bool>(true);  // for the pool's answer
};

}  // namespace djinn::daemon
