// SPDX-License-Identifier: Apache-2.0

// ControlLoop: the main thread. It reads djinnd's commands, maps memory here, and posts the result
// to the lane's thread. What a client's graph makes slow is the admitter's.
//
// Commands are obeyed in their order, so that a program finds the model that came before it, and a
// run the program, which it awaits where that is not admitted yet. Bytes that djinnd wants back
// wait for no step but one that uses them: this thread lets go of a model's itself, and the answer
// may overtake that to a command before.
// djinnd's end closing the channel is the end of this process.
#pragma once

#include <map>
#include <memory>

#include "daemon/child/channel.h"
#include "daemon/worker/admitter.h"
#include "daemon/worker/lane_loop.h"
#include "daemon/worker/outbox.h"

namespace djinn::worker {

class ControlLoop {
 public:
  struct Parts {
    child::Channel& channel;
    Outbox& outbox;
    Grants& grants;
    LaneLoop& lane;
    gc::FaultPoints& faults;
    pal::DevicePal& pal;
    SequencePager& pager;
    exec::Executor& executor;  // the lane's
    const Clock& clock;
  };
  // Before its end the lane is stopped.
  explicit ControlLoop(const Parts& parts);

  // Until djinnd closes the channel. Errors: kDisconnected then, or what ended the channel.
  Status run();

 private:
  Status obey(ipc::Datagram message);
  void obey(const ipc::AttachSession& command, std::vector<Fd> fds);
  void obey(const ipc::DetachSession& command, std::vector<Fd> fds);
  void obey(const ipc::AddModel& command, std::vector<Fd> fds);
  void obey(const ipc::DropModel& command, std::vector<Fd> fds);
  void obey(const ipc::ParkModel& command, std::vector<Fd> fds);
  void obey(const ipc::ModelLost& command, std::vector<Fd> fds);
  void obey(const ipc::AddProgram& command, std::vector<Fd> fds);
  void obey(const ipc::DropProgram& command, std::vector<Fd> fds);
  void obey(const ipc::AddSequence& command, std::vector<Fd> fds);
  void obey(const ipc::ReleaseSequence& command, std::vector<Fd> fds);
  void obey(const ipc::SpillSequence& command, std::vector<Fd> fds);
  void obey(const ipc::GrantAnswer& command, std::vector<Fd> fds);
  void obey(const ipc::GiveMemory& command, std::vector<Fd> fds);
  void obey(const ipc::GetWorkerStats& command, std::vector<Fd> fds);
  void obey(const ipc::WakeLane& command, std::vector<Fd> fds);
  void obey(const ipc::JoinBaton& command, std::vector<Fd> fds);
  void obey(const ipc::TrimRefs& command, std::vector<Fd> fds);
  void obey(const ipc::GetLaneSchedule& command, std::vector<Fd> fds);

  // New, or parked here and with its bytes again.
  Result<std::shared_ptr<MappedModel>> take_in(const ipc::AddModel& command, std::vector<Fd> fds);
  // Whether nobody here has the model's bytes any more.
  bool park_now(ModelId id);
  Result<Admitter::Order> order_of(const ipc::AddProgram& command, const std::vector<Fd>& fds);

  void hand_over(std::shared_ptr<Sequence> sequence, const ipc::SequenceAdded& added);
  // Counts down the groups that an attached session still waits for; the last one lets it run.
  void let_run_if_complete(SessionId id);

  Parts parts_;
  // Attached again after a worker's death, and not all of its sequence groups are back.
  struct Arriving {
    std::unique_ptr<Session> session;
    uint32_t sequences = 0;  // still to come
  };
  std::map<SessionId, Arriving> arriving_;
  // What programs are admitted against; the lane has its own references.
  std::map<ModelId, std::shared_ptr<MappedModel>> models_;
  Admitter admitter_;
};

}  // namespace djinn::worker
