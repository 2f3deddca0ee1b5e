// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/worker_supervisor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ipc/codec/control_codec.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

using Kind = OwedAnswer::Kind;

constexpr uint64_t kComputesOneIn = 20;

std::optional<uint64_t> request_answered_by(const ipc::WorkerCommand& command) {
  if (const auto* const answer = std::get_if<ipc::GrantAnswer>(&command.body)) {
    return answer->request;
  }
  if (const auto* const given = std::get_if<ipc::GiveMemory>(&command.body)) return given->request;
  return std::nullopt;
}

}  // namespace

bool may_follow(WorkerPhase from, WorkerPhase to) {
  using enum WorkerPhase;
  static constexpr auto kLegal = std::to_array<Transition<WorkerPhase>>({
      {kAbsent, kAbsent},  // nobody wants what was not there
      {kAbsent, kWaiting},
      {kWaiting, kAbsent},
      {kWaiting, kReady},
      {kReady, kAbsent},
      {kReady, kBackingOff},
      {kBackingOff, kAbsent},
      {kBackingOff, kWaiting},
  });
  return is_listed(kLegal, from, to);
}

std::optional<OwedAnswer> owed_for(const ipc::WorkerCommand& command) {
  using Owed = std::optional<OwedAnswer>;
  return std::visit(
      Overloaded{[](const ipc::AttachSession& c) -> Owed {
                   return OwedAnswer{Kind::kAttachSession, c.session.value, {}};
                 },
                 [](const ipc::DetachSession& c) -> Owed {
                   return OwedAnswer{Kind::kDetachSession, c.session.value, {}};
                 },
                 [](const ipc::AddModel& c) -> Owed {
                   return OwedAnswer{Kind::kAddModel, c.model.value, {}};
                 },
                 [](const ipc::DropModel& c) -> Owed {
                   return OwedAnswer{Kind::kDropModel, c.model.value, {}};
                 },
                 [](const ipc::ParkModel& c) -> Owed {
                   return OwedAnswer{Kind::kParkModel, c.model.value, {}};
                 },
                 [](const ipc::AddSequence& c) -> Owed {
                   return OwedAnswer{Kind::kAddSequence, c.session.value, c.sequence};
                 },
                 [](const ipc::ReleaseSequence& c) -> Owed {
                   return OwedAnswer{Kind::kReleaseSequence, c.session.value, c.sequence};
                 },
                 [](const ipc::GetWorkerStats&) -> Owed {
                   return OwedAnswer{Kind::kStats, 0, {}};
                 },
                 [](const ipc::GetLaneSchedule&) -> Owed {
                   return OwedAnswer{Kind::kSchedule, 0, {}};
                 },
                 [](const ipc::WakeLane&) -> Owed {
                   return OwedAnswer{Kind::kWakeLane, 0, {}};
                 },
                 [](const ipc::TrimRefs& c) -> Owed {
                   return OwedAnswer{Kind::kTrimRefs, c.session.value, {}};
                 },
                 [](const auto&) -> Owed { return std::nullopt; }},
      command.body);
}

std::optional<OwedAnswer> answered_by(const ipc::WorkerEvent& event) {
  using Owed = std::optional<OwedAnswer>;
  return std::visit(
      Overloaded{[](const ipc::Attached& e) -> Owed {
                   return OwedAnswer{Kind::kAttachSession, e.session.value, {}};
                 },
                 // This also answers the attach, because the worker could not take the session in.
                 [](const ipc::SessionBroken& e) -> Owed {
                   return OwedAnswer{Kind::kAttachSession, e.session.value, {}};
                 },
                 [](const ipc::Detached& e) -> Owed {
                   return OwedAnswer{Kind::kDetachSession, e.session.value, {}};
                 },
                 [](const ipc::ModelAdded& e) -> Owed {
                   return OwedAnswer{Kind::kAddModel, e.model.value, {}};
                 },
                 [](const ipc::ModelDropped& e) -> Owed {
                   return OwedAnswer{Kind::kDropModel, e.model.value, {}};
                 },
                 [](const ipc::ModelParked& e) -> Owed {
                   return OwedAnswer{Kind::kParkModel, e.model.value, {}};
                 },
                 [](const ipc::SequenceAdded& e) -> Owed {
                   return OwedAnswer{Kind::kAddSequence, e.session.value, e.sequence};
                 },
                 [](const ipc::SequenceDropped& e) -> Owed {
                   return OwedAnswer{Kind::kReleaseSequence, e.session.value, e.sequence};
                 },
                 [](const ipc::WorkerStats&) -> Owed {
                   return OwedAnswer{Kind::kStats, 0, {}};
                 },
                 [](const ipc::LaneSchedule&) -> Owed {
                   return OwedAnswer{Kind::kSchedule, 0, {}};
                 },
                 [](const ipc::LaneAwake&) -> Owed {
                   return OwedAnswer{Kind::kWakeLane, 0, {}};
                 },
                 [](const ipc::RefsTrimmed& e) -> Owed {
                   return OwedAnswer{Kind::kTrimRefs, e.session.value, {}};
                 },
                 [](const auto&) -> Owed { return std::nullopt; }},
      event.body);
}

std::optional<OwedAnswer> suspect_of(const std::deque<OwedAnswer>& owed) {
  const auto is_question = [](const OwedAnswer& one) {
    return one.kind == Kind::kWakeLane || one.kind == Kind::kSchedule;
  };
  const auto found = std::ranges::find_if_not(owed, is_question);
  return found == owed.end() ? std::nullopt : std::optional(*found);
}

WorkerSupervisor::WorkerSupervisor(Loop& loop, const Clock& clock, SparePool& spares,
                                   WorkerListener& listener, Events& events, WorkerKey key,
                                   uint64_t hang_timeout_ms)
    : loop_(loop),
      clock_(clock),
      spares_(spares),
      listener_(listener),
      events_(events),
      key_(key),
      hang_timeout_ms_(hang_timeout_ms),
      looked_{Looked(hang_timeout_ms * 1'000'000), Looked(hang_timeout_ms * 1'000'000)},
      step_watch_(hang_timeout_ms * 1'000'000),
      lane_watch_(hang_timeout_ms * 1'000'000),
      command_watch_(hang_timeout_ms * 1'000'000),
      back_off_timer_(loop, [this] { ask_for_worker(); }) {}

void WorkerSupervisor::emit(EventKind kind, std::string text) {
  Event event = device_event(key_.device, kind, std::move(text));
  event.owner = key_.owner;
  events_.emit(std::move(event));
}

void WorkerSupervisor::need() {
  needed_again_ = dismissed_;
  if (phase_ == WorkerPhase::kAbsent) ask_for_worker();
}

void WorkerSupervisor::ask_for_worker() {
  phase_.enter(WorkerPhase::kWaiting);
  spares_.take(wanted_, [this](ReadyChild child) { adopt(std::move(child)); });
}

void WorkerSupervisor::adopt(ReadyChild child) {
  DJINN_ASSERT(process_ == nullptr && owed_.empty() && asks_.empty());
  process_ = std::move(child.process);
  ready_ = child.ready;
  phase_.enter(WorkerPhase::kReady);
  ever_ready_ = true;
  killed_ = false;
  own_time_ = {};
  for (HangWatch* watch : {&step_watch_, &lane_watch_, &command_watch_}) watch->reset();
  looked_.fill(Looked(hang_timeout_ms_ * 1'000'000));
  process_->listen(
      {[this](const ipc::Datagram& message) { heard(message); }, [this] { exited(); }});
  emit(EventKind::kWorkerStarted,
       fmt::format("worker {} serves {}", process_->pid(), events_.user_text(key_.owner)));
  listener_.worker_ready(key_);
}

void WorkerSupervisor::retire() {
  const bool had_worker = ready();
  dismissed_ = needed_again_ = false;
  wanted_ = std::make_shared<bool>(true);
  back_off_timer_.stop();
  owed_.clear();
  asks_.clear();
  if (process_) process_->end();  // dead before its memory counts as free
  loop_.dispose(std::move(process_));
  counts_.worker_gone();
  phase_.enter(WorkerPhase::kAbsent);
  if (had_worker) listener_.worker_died(key_, {});
}

void WorkerSupervisor::dismiss() {
  DJINN_ASSERT(ready() && !killed_);
  abandon("serves no session, and others want its memory");
}

void WorkerSupervisor::abandon(const char* why) {
  if (absent()) return;
  if (!ready()) return retire();  // it has no process
  dismissed_ = true;
  needed_again_ = false;
  kill(why);
}

bool WorkerSupervisor::is_coming() const {
  return phase_ == WorkerPhase::kWaiting ||
         (phase_ == WorkerPhase::kBackingOff && (!dismissed_ || needed_again_));
}

void WorkerSupervisor::send(const ipc::WorkerCommand& command, std::span<const int> fds) {
  if (!ready()) return;
  DJINN_ASSERT(process_ != nullptr);
  if (const auto owed = owed_for(command)) owed_.push_back(*owed);
  if (const auto request = request_answered_by(command)) asks_.erase(*request);
  process_->send(ipc::encode(command), fds);
}

void WorkerSupervisor::kill(const char* why) {
  if (!ready() || std::exchange(killed_, true)) return;
  emit(EventKind::kWorkerKilled, fmt::format("worker {} {}; killing it", process_->pid(), why));
  process_->kill();
}

void WorkerSupervisor::heard(const ipc::Datagram& message) {
  DJINN_ASSERT(ready());
  const auto event = ipc::decode_worker_event(message.bytes);
  if (!event.ok()) return kill("sent a message that nobody can read");
  const auto& body = event.value().body;
  if (std::holds_alternative<ipc::LaneAwake>(body)) {
    ++wakes_;
  } else if (const auto* const look = std::get_if<ipc::ProgramLookedAt>(&body)) {
    note_look(*look);
  } else if (!std::holds_alternative<ipc::WorkerStats>(body)) {
    ++answers_;
  }
  if (const auto* const ask = std::get_if<ipc::GrantRequest>(&body); ask && !note_ask(*ask)) return;
  if (const auto answered = answered_by(event.value())) {
    const auto owed = std::find(owed_.begin(), owed_.end(), *answered);
    if (owed != owed_.end()) owed_.erase(owed);
  }
  listener_.worker_said(key_, event.value());
}

bool WorkerSupervisor::note_ask(const ipc::GrantRequest& event) {
  if (asks_.contains(event.request)) {
    kill("asks for memory twice by one number");
    return false;
  }
  if (asks_.size() < kAsksMax) return asks_.insert(event.request).second;
  ipc::GrantAnswer refusal;
  refusal.request = event.request;
  refusal.code = ErrorCode::kLimitExceeded;
  refusal.message = fmt::format(
      "{} requests for memory of this user's wait already, which is the limit. Try again when "
      "some are answered.",
      kAsksMax);
  send({refusal});
  return false;
}

void WorkerSupervisor::note_look(const ipc::ProgramLookedAt& event) {
  Looked& desk = looked_[static_cast<size_t>(event.desk)];
  desk.at = event.program;
  ++desk.heard;
  desk.cpu_ns = process_->cpu_ns();
}

std::vector<DeathAdmitting> WorkerSupervisor::deaths_admitting() const {
  std::vector<DeathAdmitting> deaths;
  const auto crashed_at = process_->crashed_at();
  for (size_t i = 0; i < looked_.size(); ++i) {
    const Looked& desk = looked_[i];
    const bool crashed = crashed_at == static_cast<ipc::AdmissionDesk>(i);
    if (!crashed && !desk.at.valid()) continue;
    deaths.push_back({desk.at, crashed || desk.overran,
                      desk.overran ? std::optional(hang_timeout_ms_) : std::nullopt});
  }
  return deaths;
}

WorkerDeath WorkerSupervisor::death_of_its_own() {
  emit(EventKind::kWorkerLost,
       fmt::format("worker {} of {} has died {}", process_->pid(), events_.user_text(key_.owner),
                   process_->how_it_ended()));
  ++restarts_;
  WorkerDeath death;
  death.overran_ms = overran_ms_;
  death.admitting = deaths_admitting();
  death.suspect = suspect_of(owed_);
  return death;
}

void WorkerSupervisor::exited() {
  DJINN_ASSERT(ready() && process_->dead());
  const WorkerDeath death = dismissed_ ? WorkerDeath() : death_of_its_own();
  overran_ms_.reset();
  owed_.clear();
  asks_.clear();
  loop_.dispose(std::move(process_));
  counts_.worker_gone();
  phase_.enter(WorkerPhase::kBackingOff);
  const bool progressed = listener_.worker_died(key_, death);
  if (phase_ != WorkerPhase::kBackingOff) return;  // meanwhile retired, or needed again
  if (std::exchange(dismissed_, false)) {
    return std::exchange(needed_again_, false) ? ask_for_worker()
                                               : phase_.enter(WorkerPhase::kAbsent);
  }
  const uint64_t wait_ms = back_off_.after_death(progressed);
  if (wait_ms > 0) return back_off_timer_.start_once(wait_ms);
  ask_for_worker();
}

void WorkerSupervisor::wake_lane() {
  const bool asked = std::ranges::find(owed_, Kind::kWakeLane, &OwedAnswer::kind) != owed_.end();
  if (!asked) send({ipc::WakeLane{}});
}

// A stopped process does not compute, and neither does one that waits. A process to which others
// leave little of the cores computes a little.
bool WorkerSupervisor::computes_since(uint64_t cpu_ns) const {
  return process_->cpu_ns() - cpu_ns >= hang_timeout_ms_ * 1'000'000 / kComputesOneIn;
}

// Each kind of work has its own signs of life. If one stands still, another may go on, and a client
// could make that one go on for ever.
bool WorkerSupervisor::look(const LaneActivity& lane, uint64_t due_ms) {
  if (!ready()) return false;
  if (killed_) return true;
  const uint64_t cpu_ns = process_->cpu_ns();
  const uint64_t now_ns = own_time_.look(clock_.monotonic_ns(), cpu_ns, due_ms * kNsPerMs);
  // A command is not overdue while an older one is unanswered.
  const bool asked = !owed_.empty() && owed_.front().kind == Kind::kWakeLane;
  const bool stuck_in_step = step_watch_.look(now_ns, {lane.in_step, lane.count});
  const bool stuck_lane = lane_watch_.look(now_ns, {asked && !lane.in_step, wakes_});
  // Most commands are answered by the lane, between two steps.
  const bool stuck = command_watch_.look(now_ns, {!owed_.empty() && !lane.in_step, answers_, true});
  Looked* stuck_desk = nullptr;
  bool looks = false;
  for (Looked& desk : looked_) {
    if (desk.watch.look(now_ns, {desk.at.valid(), desk.heard})) stuck_desk = &desk;
    looks |= desk.at.valid();
  }
  if (step_watch_.is_fresh(now_ns)) cpu_seen_ns_ = cpu_ns;
  const bool has_work = lane.in_step || !owed_.empty() || looks;
  if (stuck_in_step && computes_since(cpu_seen_ns_)) {
    overran_ms_ = hang_timeout_ms_;
    kill("is in one operator for longer than it may");
  } else if (stuck_desk != nullptr && !stuck_in_step && computes_since(stuck_desk->cpu_ns)) {
    stuck_desk->overran = true;
    kill("looks at a part of a graph for longer than it may");
  } else if (stuck_in_step || stuck_lane || stuck || stuck_desk != nullptr) {
    kill("does nothing although it has work");
  } else if (!lane.in_step && std::exchange(count_seen_, lane.count) == lane.count) {
    wake_lane();
  }
  return has_work;
}

ipc::WorkerReport WorkerSupervisor::report() const {
  ipc::WorkerReport report;
  report.device = text_of(key_.device);
  report.pid = process_ ? static_cast<uint32_t>(process_->pid()) : 0;
  report.state = ready()       ? ipc::WorkerState::kReady
                 : ever_ready_ ? ipc::WorkerState::kRecovering
                               : ipc::WorkerState::kStarting;
  if (!ready() && spares_.fails()) report.state = ipc::WorkerState::kFailed;
  report.threads = ready_.threads;
  report.restarts = restarts_;
  report.landlock_abi = ready_.landlock_abi;
  report.seccomp = ready_.seccomp;
  const ipc::WorkerStats counts = counts_.total();
  report.slab_bytes = counts.slab_bytes;
  report.runs = counts.runs;
  report.planned_runs = counts.planned_runs;
  report.plan_misses = counts.plan_misses;
  report.runs_repeated = counts.runs_repeated;
  report.runs_together = counts.runs_together;
  report.turn_ns = counts.turn_ns;
  report.overruns = counts.overruns;
  report.refused = counts.submissions_refused;
  report.tokens = counts.tokens;
  return report;
}

}  // namespace djinn::daemon
