// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/control_loop.h"

#include <sys/stat.h>

#include <utility>

#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::worker {
namespace {

ipc::ProgramRefused refusal(ProgramId program, const Error& error) {
  ipc::ProgramRefused refused;
  refused.program = program;
  refused.code = error.code;
  refused.message = error.message;
  return refused;
}

static_assert(sched::kDecisions == limits::kDecisions);

ipc::LaneSchedule told(const sched::Queue& queue, uint64_t now_ns) {
  ipc::LaneSchedule schedule{queue.policy(), {}};
  for (const sched::Decision& decision : queue.decisions()) {
    ipc::ScheduleDecision& out = schedule.decisions.emplace_back();
    out.number = decision.number;
    out.session = decision.session;
    out.service = decision.service;
    out.reason = decision.reason;
    out.ago_ns = now_ns > decision.at_ns ? now_ns - decision.at_ns : 0;
    out.ready = decision.ready;
    out.lag_ns = decision.lag_ns;
    out.deadline_ns = decision.deadline_ns;
    out.predicted_ns = decision.predicted_ns;
    out.measured_ns = decision.measured_ns;
    out.paused = decision.paused;
  }
  return schedule;
}

template <typename Event>
Event with_error(Event event, const Error& error) {
  event.code = error.code;
  event.message = error.message;
  return event;
}

}  // namespace

ControlLoop::ControlLoop(const Parts& parts)
    : parts_(parts), admitter_({parts.executor, parts.lane, parts.outbox, parts.clock}) {
  parts_.lane.post([this](LaneLoop::State& state) {
    state.programs.on_need([this](ProgramId program) { admitter_.need(program); });
  });
}

Status ControlLoop::run() {
  for (;;) {
    DJINN_TRY(ipc::Datagram message, parts_.channel.receive());
    DJINN_CHECK(obey(std::move(message)));
  }
}

Status ControlLoop::obey(ipc::Datagram message) {
  DJINN_TRY(const ipc::WorkerCommand command, ipc::decode_worker_command(message.bytes));
  std::visit([&](const auto& body) { obey(body, std::move(message.fds)); }, command.body);
  return {};
}

void ControlLoop::obey(const ipc::AttachSession& command, std::vector<Fd> fds) {
  auto session = Session::attach(command, std::move(fds), parts_.pal, parts_.grants, parts_.faults);
  if (!session) {
    parts_.outbox.send(
        {ipc::SessionBroken{command.session, session.error().code, session.error().message}});
    return;
  }
  DJINN_ASSERT(!arriving_.contains(command.session));
  arriving_[command.session] = {*std::move(session), command.sequences};
  let_run_if_complete(command.session);
  parts_.outbox.send({ipc::Attached{command.session}});
}

void ControlLoop::let_run_if_complete(SessionId id) {
  const auto found = arriving_.find(id);
  if (found == arriving_.end() || found->second.sequences != 0) return;
  parts_.lane.add_session(std::move(found->second.session));
  arriving_.erase(found);
}

void ControlLoop::obey(const ipc::DetachSession& command, std::vector<Fd>) {
  arriving_.erase(command.session);
  parts_.lane.remove_session(command.session, [this, id = command.session] {
    parts_.pager.after_moves([this, id] { parts_.outbox.send({ipc::Detached{id}}); });
  });
}

Result<std::shared_ptr<MappedModel>> ControlLoop::take_in(const ipc::AddModel& command,
                                                          std::vector<Fd> fds) {
  const auto known = models_.find(command.model);
  if (known == models_.end()) {
    return MappedModel::map(command.model, std::move(fds), command.parked, parts_.pal);
  }
  if (command.parked) return known->second;
  DJINN_CHECK(known->second->map_again(std::move(fds), parts_.pal));
  return known->second;
}

void ControlLoop::obey(const ipc::AddModel& command, std::vector<Fd> fds) {
  auto model = take_in(command, std::move(fds));
  if (!model) {
    parts_.outbox.send({with_error(ipc::ModelAdded{command.model, {}, {}}, model.error())});
    return;
  }
  models_[command.model] = *model;
  // The answer goes out once the lane has the model, so that no run can come before it.
  parts_.lane.post([this, model = *model, parked = command.parked](LaneLoop::State& state) {
    state.programs.add_model(model);
    if (!parked) state.programs.model_came(model->id());
    parts_.outbox.send({ipc::ModelAdded{model->id(), ErrorCode::kOk, {}}});
  });
}

bool ControlLoop::park_now(ModelId id) {
  const auto found = models_.find(id);
  return found != models_.end() && found->second->park(parts_.pal);
}

// A model without its bytes costs nothing but addresses: the lane forgets it in its own time, and
// no run finds it after that.
void ControlLoop::obey(const ipc::DropModel& command, std::vector<Fd>) {
  const bool gone = park_now(command.model);
  models_.erase(command.model);
  admitter_.drop_programs_of(command.model, [this, id = command.model, gone] {
    parts_.lane.post(id, [this, id, gone](LaneLoop::State& state) {
      state.programs.drop_model(id, state.lane);
      if (!gone) parts_.outbox.send({ipc::ModelDropped{id}});
    });
  });
  if (gone) parts_.outbox.send({ipc::ModelDropped{command.model}});
}

void ControlLoop::obey(const ipc::ParkModel& command, std::vector<Fd>) {
  if (park_now(command.model)) return parts_.outbox.send({ipc::ModelParked{command.model}});
  parts_.lane.post(command.model, [this, id = command.model](LaneLoop::State& state) {
    state.programs.park_model(id, parts_.pal);
    parts_.outbox.send({ipc::ModelParked{id}});
  });
}

void ControlLoop::obey(const ipc::ModelLost& command, std::vector<Fd>) {
  parts_.lane.post([command](LaneLoop::State& state) {
    state.programs.lose_model(command.model, {command.code, command.message});
  });
}

Result<Admitter::Order> ControlLoop::order_of(const ipc::AddProgram& command,
                                              const std::vector<Fd>& fds) {
  if (fds.size() != 1) return Error{ErrorCode::kMalformed, "A program came without its graph."};
  struct stat info {};
  if (::fstat(fds[0].get(), &info) != 0) return system_error("look at a graph", errno);
  DJINN_TRY(auto bytes, pal::read_memfd(fds[0], static_cast<uint64_t>(info.st_size)));
  const auto model = models_.find(command.model);
  if (command.model.valid() && model == models_.end()) {
    return Error{ErrorCode::kNotFound, "There is no such model. Open it first."};
  }
  // A program that was admitted once must be admitted again, however busy the host is, so it has
  // twice the time.
  const uint64_t cpu_ms_max = limits::kAdmissionCpuMs * (command.again ? 2 : 1);
  return Admitter::Order{command.program, command.model.valid() ? model->second : nullptr,
                         std::make_shared<const std::vector<std::byte>>(std::move(bytes)),
                         cpu_ms_max};
}

void ControlLoop::obey(const ipc::AddProgram& command, std::vector<Fd> fds) {
  auto order = order_of(command, fds);
  if (!order) {
    parts_.outbox.send({refusal(command.program, order.error())});
    return;
  }
  parts_.lane.post([command, graph = order->graph](LaneLoop::State& state) {
    state.programs.expect_program(command.program, command.model, graph);
  });
  admitter_.admit(*std::move(order));
}

void ControlLoop::obey(const ipc::DropProgram& command, std::vector<Fd>) {
  admitter_.drop(command.program);
  parts_.lane.post(command.program, [id = command.program](LaneLoop::State& state) {
    state.programs.drop_program(id, state.lane);
  });
}

void ControlLoop::obey(const ipc::AddSequence& command, std::vector<Fd> fds) {
  const ipc::SequenceAdded added{command.session, command.sequence, ErrorCode::kOk, {}};
  const bool complete = fds.size() == (command.spilled ? 2 : 1);
  Fd file = complete && command.spilled ? std::move(fds[1]) : Fd();
  Result<std::shared_ptr<Sequence>> sequence =
      complete
          ? Sequence::map(command.session, command.sequence, command.geometry, std::move(fds[0]),
                          command.bytes_granted, std::move(file), parts_.pal)
          : Error{ErrorCode::kMalformed, "A sequence group came without its memory."};
  if (!sequence) {
    parts_.outbox.send({with_error(added, sequence.error())});
  } else if (const auto found = arriving_.find(command.session); found != arriving_.end()) {
    found->second.session->add_sequence(*sequence);
    parts_.outbox.send({added});
  } else {
    hand_over(*sequence, added);
  }
  if (const auto found = arriving_.find(command.session); found != arriving_.end()) {
    DJINN_ASSERT(found->second.sequences > 0);
    found->second.sequences -= 1;
    let_run_if_complete(command.session);
  }
}

void ControlLoop::hand_over(std::shared_ptr<Sequence> sequence, const ipc::SequenceAdded& added) {
  parts_.lane.post([this, added, sequence = std::move(sequence)](LaneLoop::State& state) {
    const auto session = state.sessions.find(sequence->session());
    if (session != state.sessions.end()) session->second->add_sequence(sequence);
    parts_.outbox.send({added});
  });
}

void ControlLoop::obey(const ipc::ReleaseSequence& command, std::vector<Fd>) {
  const LaneLoop::Group group{command.session, command.sequence};
  parts_.lane.post(group, [this, command](LaneLoop::State& state) {
    const auto session = state.sessions.find(command.session);
    if (session != state.sessions.end()) session->second->drop_sequence(command.sequence);
    state.waits.arrived(AwaitedSequence{command.session, command.sequence});  // it comes no more
    parts_.pager.after_moves([this, command] {
      parts_.outbox.send({ipc::SequenceDropped{command.session, command.sequence}});
    });
  });
}

void ControlLoop::obey(const ipc::SpillSequence& command, std::vector<Fd> fds) {
  auto file = std::make_shared<Fd>(fds.empty() ? Fd() : std::move(fds[0]));
  const LaneLoop::Group group{command.session, command.sequence};
  parts_.lane.post(group, [this, command, file](LaneLoop::State& state) {
    const auto session = state.sessions.find(command.session);
    const auto sequence = session != state.sessions.end()
                              ? session->second->find_sequence(command.sequence)
                              : Error{ErrorCode::kNotFound, "There is no such session."};
    if (sequence && (*sequence)->place() == Sequence::Place::kPresent) {
      return parts_.pager.spill(*sequence, std::move(*file));
    }
    ipc::SequenceSpilled told{command.session, command.sequence, 0, {}, {}};
    const Error moves{ErrorCode::kBusy, "The sequence group is on its way back."};
    parts_.outbox.send({with_error(told, sequence ? moves : sequence.error())});
  });
}

void ControlLoop::obey(const ipc::GrantAnswer& command, std::vector<Fd>) {
  parts_.grants.deliver(command);
}

void ControlLoop::obey(const ipc::GiveMemory& command, std::vector<Fd> fds) {
  parts_.grants.deliver(command, std::move(fds));
}

// The control thread answers by itself, so that a long step keeps nobody waiting.
void ControlLoop::obey(const ipc::GetWorkerStats&, std::vector<Fd>) {
  parts_.outbox.send({parts_.lane.counts().read()});
}

void ControlLoop::obey(const ipc::GetLaneSchedule&, std::vector<Fd>) {
  parts_.lane.post([this](LaneLoop::State& state) {
    parts_.outbox.send({told(state.queue, parts_.clock.monotonic_ns())});
  });
}

void ControlLoop::obey(const ipc::WakeLane&, std::vector<Fd>) {
  parts_.lane.post([this](LaneLoop::State&) { parts_.outbox.send({ipc::LaneAwake{}}); });
}

void ControlLoop::obey(const ipc::JoinBaton& command, std::vector<Fd> fds) {
  DJINN_ASSERT(fds.size() == 1 && command.slot < ipc::kBatonSlots);
  auto page = pal::map_shared(fds[0], sizeof(ipc::BatonPage), pal::Access::kReadWrite);
  if (page) parts_.lane.join_baton(*std::move(page), command.slot);
}

void ControlLoop::obey(const ipc::TrimRefs& command, std::vector<Fd>) {
  parts_.lane.trim_refs(command.session, [this, command] {
    parts_.outbox.send({ipc::RefsTrimmed{command.session}});
  });
}

}  // namespace djinn::worker
