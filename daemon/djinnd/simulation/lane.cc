// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/lane.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <utility>

#include "daemon/djinnd/simulation/machine.h"
#include "ipc/session_memory.h"
#include "kernel/base/assert.h"
#include "kernel/base/clock.h"
#include "kernel/sched/queue_for_tests.h"

namespace djinn::daemon::simulation {
namespace {

using sched::Arrival;
using sched::kUnitNs;
using sched::QueueForTests;

constexpr uint64_t kMs = kNsPerMs;
constexpr uint64_t kTurnNs = 50'000;    // of a lane that waits for a client
constexpr uint64_t kJudgedNs = 30'000;  // what it takes to tell whether a step begins in time
constexpr uint32_t kTriesInsideMax = 3;
constexpr std::array<int64_t, kServiceClasses> kWeights{4, 2, 1, 1};  // as queue.h says

constexpr size_t kPublished = offsetof(ipc::SessionControl, submissions_published);
constexpr size_t kCompleted = offsetof(ipc::SessionControl, submissions_completed);
constexpr size_t kCancelled = offsetof(ipc::SessionControl, cancelled_through);

uint64_t read_word(const Fd& memory, size_t offset) {
  uint64_t word = 0;
  const ssize_t got = ::pread(memory.get(), &word, sizeof word, static_cast<off_t>(offset));
  return got == ssize_t{sizeof word} ? word : 0;
}

void write_word(const Fd& memory, size_t offset, uint64_t word) {
  [[maybe_unused]] const ssize_t put =
      ::pwrite(memory.get(), &word, sizeof word, static_cast<off_t>(offset));
}

uint64_t completed_of(const AttachedSession& session) {
  return session.state->record().completed;
}

bool is_cancelled(const AttachedSession& session) {
  if (session.state->in_flight() && session.state->is_given_up()) return true;
  return read_word(session.memory, kCancelled) > completed_of(session);
}

bool is_idle(ServiceClass service) {
  return service == ServiceClass::kIdle;
}

int64_t weight_of(ServiceClass service) {
  return kWeights[static_cast<size_t>(service)];
}

}  // namespace

Lane::Lane(Machine& machine)
    : machine_(machine),
      queue_(machine.one_in(6) ? SchedulePolicy::kFifo : SchedulePolicy::kFair),
      now_ns_(machine.monotonic_ns()) {}

bool Lane::has_work() const {
  return !unit_.empty() || queue_.has_ready();
}

void Lane::fail(const std::string& what) {
  if (!wrong_) wrong_ = "the queue: " + what;
}

// --- sessions

void Lane::add(SessionId id, ServiceClass service, AttachedSession& session, bool is_refused) {
  Seat& seat = seats_[id];
  seat.session = &session;
  seat.service = service;
  seat.is_refused = is_refused && session.state->in_flight();
  seat.step.session = id;
  const bool is_mixed_up = machine_.mistake() == Mistake::kClassIsMixedUp;
  queue_.add(id, is_mixed_up ? ServiceClass::kInteractive : service);
  find_submission(seat, Arrival::kWoke);
}

// A run that is aside is abandoned before its session is removed, or goes with it.
void Lane::remove(SessionId id) {
  const auto found = seats_.find(id);
  if (found == seats_.end()) return;
  if (std::erase(unit_, id) == 0 && queue_.slicing() == id && machine_.one_in(2)) {
    queue_.resume(id, now_ns_);
    queue_.charge(id, 0, now_ns_);
  }
  if (unit_.empty()) spent_ns_ = 0;
  if (machine_.mistake() != Mistake::kAccountOutlives) queue_.remove(id);
  seats_.erase(found);
  check();
}

void Lane::look() {
  for (auto& [id, seat] : seats_) {
    const bool is_picked = std::ranges::find(unit_, id) != unit_.end();
    if (seat.is_queued || is_picked) {
      if (is_cancelled(*seat.session)) cancel(seat);
    } else {
      find_submission(seat, machine_.one_in(2) ? Arrival::kWoke : Arrival::kNext);
    }
  }
}

// What is queued or computed ends at once when it is its turn, or at its next operator.
void Lane::cancel(Seat& seat) {
  if (seat.is_queued) queue_.withdraw(seat.step.session);
  seat.left_ns = 0;
}

void Lane::find_submission(Seat& seat, Arrival arrival) {
  const Fd& memory = seat.session->memory;
  while (read_word(memory, kPublished) > completed_of(*seat.session)) {
    begin_submission(seat);
    if (is_refused_at_once(seat)) continue;
    seat.came = ++arrivals_;
    return enqueue(seat, arrival);
  }
}

// A generation, a run that can be paused, or a short one.
void Lane::begin_submission(Seat& seat) {
  seat.steps = 0;
  seat.can_be_paused = machine_.one_in(3);
  if (!seat.can_be_paused && machine_.one_in(3)) seat.steps = machine_.between(1, 20);
  seat.step.batch_key = seat.can_be_paused || machine_.one_in(2) ? 0 : 1;
  next_step(seat);
}

void Lane::next_step(Seat& seat) {
  seat.whole_ns = machine_.between(1, seat.can_be_paused ? 400 : 25) * kMs;
  seat.left_ns = seat.whole_ns;
  seat.tries_inside = 0;
  sched::ReadyStep& step = seat.step;
  const bool is_wrong = machine_.one_in(8);
  step.predicted_ns = is_wrong ? machine_.below(2 * seat.whole_ns) : seat.whole_ns;
  step.is_sure = !machine_.one_in(6);
  step.is_long = seat.can_be_paused && step.is_sure && step.predicted_ns > 3 * kUnitNs;
}

void Lane::enqueue(Seat& seat, Arrival arrival) {
  seat.is_queued = true;
  seat.due_ns = 0;
  seat.step.arrival = arrival;
  queue_.enqueue(seat.step, now_ns_);
}

// --- deadlines

bool Lane::is_refused_at_once(Seat& seat) {
  if (!machine_.one_in(6) || seat.session->state->in_flight()) return false;
  const auto foreseen =
      sched::forecast(queue_, seat.step, now_ns_, [this](SessionId id) { return backlog_of(id); });
  queue_.charge_judging(seat.step.session, Arrival::kNext, now_ns_, kJudgedNs);
  if (foreseen.wait_ns <= machine_.below(200) * kMs) return false;
  const AttachedSession& session = *seat.session;
  gc::StepRecord record = session.state->record();
  record.kind = gc::StepKind::kFailed;
  ++record.completed;
  seat.session->state->begin();
  seat.session->state->stage_record(record);
  seat.session->state->commit();
  write_word(session.memory, kCompleted, record.completed);
  return true;
}

sched::Backlog Lane::backlog_of(SessionId id) {
  const Seat& seat = seats_.at(id);
  const uint64_t completed = completed_of(*seat.session);
  const uint64_t open = read_word(seat.session->memory, kPublished) - completed;
  return {.step_ns = seat.step.predicted_ns,
          .has_slices = seat.can_be_paused,
          .is_long = seat.step.is_long,
          .is_sure = seat.step.is_sure,
          .steps = seat.steps,
          .each_ns = seat.step.predicted_ns,
          .behind = open - std::min<uint64_t>(open, 1),
          .behind_ns = seat.step.predicted_ns};
}

// --- turns

void Lane::run() {
  const uint64_t end_ns = machine_.monotonic_ns();
  if (!has_work()) now_ns_ = end_ns;
  look();
  while (now_ns_ < end_ns && !wrong_) {
    if (!unit_.empty()) {
      compute(end_ns);
    } else if (has_ended_aside()) {
      queue_.resume(queue_.slicing(), now_ns_);
      begin({queue_.slicing(), sched::TurnKind::kSlice});
    } else if (sched::is_wait_next(queue_, now_ns_)) {
      now_ns_ += kTurnNs;
    } else if (!take_turn()) {
      now_ns_ = end_ns;
    }
    check();
  }
  for (const SessionId id : unit_) seats_.at(id).session->state->beat("fake::step");
}

// Whosever turn it is: a run that is cancelled ends.
bool Lane::has_ended_aside() {
  if (!queue_.has_slices() || queue_.must_give_up()) return false;
  return seats_.at(queue_.slicing()).left_ns == 0;
}

bool Lane::take_turn() {
  const bool is_given_up = queue_.must_give_up();  // whoever is ready
  const bool has_ready = is_given_up || std::ranges::any_of(seats_, [this](const auto& entry) {
                           return is_ready(entry.second);
                         });
  const auto turn = sched::next_turn(queue_, now_ns_);
  if (turn.has_value() != has_ready) {
    fail(has_ready ? "nobody is picked, and somebody is ready" : "somebody is picked unready");
  }
  if (!turn || wrong_) return false;
  if (!is_given_up) check_pick(seats_.at(turn->session));
  begin(*turn);
  return true;
}

// It is picked in the queue.
void Lane::begin(const sched::Turn& turn) {
  Seat& seat = seats_.at(turn.session);
  seat.is_queued = false;
  unit_ = {turn.session};
  if (turn.kind != sched::TurnKind::kStep) {
    seat.session->state->resume();
    ends_ns_ = now_ns_ + queue_.slice_ns() + machine_.below(5) * kMs;
    if (turn.kind == sched::TurnKind::kGiveUp) give_up(seat);
    return;
  }
  unit_ = sched::unit_of(queue_, turn.session, seat.step.batch_key, now_ns_,
                         [](SessionId) { return true; });
  for (const SessionId one : unit_) {
    seats_.at(one).is_queued = false;
    gc::SessionState& state = *seats_.at(one).session->state;
    if (!state.in_flight()) state.pick_up(state.record().completed, {}, {});
    state.begin();
  }
  const bool is_inside = queue_.has_slices();
  const bool may_end_early = is_inside ? unit_.size() == 1 : seat.can_be_paused;
  ends_ns_ =
      may_end_early ? now_ns_ + (kUnitNs << (is_inside ? seat.tries_inside : 0)) : UINT64_MAX;
}

void Lane::compute(uint64_t end_ns) {
  Seat& seat = seats_.at(unit_.front());
  pass(std::min({seat.left_ns, end_ns - now_ns_, ends_ns_ - now_ns_}));
  if (seat.left_ns == 0) return end_unit();
  if (now_ns_ < ends_ns_) return;
  const bool is_inside = queue_.has_slices() && queue_.slicing() != seat.step.session;
  if (!is_inside) return end_slice(seat);
  seat.step.is_long = true;
  ++seat.tries_inside;
  give_up(seat);
}

void Lane::pass(uint64_t ns) {
  now_ns_ += ns;
  spent_ns_ += ns;
  longest_ns_ = std::max(longest_ns_, spent_ns_);
  seats_.at(unit_.front()).left_ns -= ns;
  note_due(ns);
}

// Of time that was spent on the idle alone the others are due nothing: none of them was ready.
void Lane::note_due(uint64_t ns) {
  std::array<int64_t, 2> weights{};
  for (const auto& [id, seat] : seats_) {
    const bool has_work = seat.is_queued || std::ranges::find(unit_, id) != unit_.end();
    if (has_work) weights[is_idle(seat.service)] += weight_of(seat.service);
  }
  const bool is_of_idle =
      std::ranges::all_of(unit_, [this](SessionId id) { return is_idle(seats_.at(id).service); });
  for (auto& [id, seat] : seats_) {
    if (!is_ready(seat)) {
      seat.due_ns = 0;
    } else if (is_idle(seat.service) == is_of_idle) {
      const int64_t all = weights[is_of_idle];
      seat.due_ns += static_cast<int64_t>(ns) * weight_of(seat.service) / all;
    }
  }
}

void Lane::end_slice(Seat& seat) {
  const SessionId id = seat.step.session;
  ends_ns_ = now_ns_ + machine_.between(1, 5) * kMs;  // when it is asked next
  if (queue_.policy() == SchedulePolicy::kFifo) return;
  sched::charge_slice(queue_, id, std::exchange(spent_ns_, 0));
  const std::set<SessionId> held = queue_.held();
  for (const SessionId one : held) {
    if (seats_.at(one).tries_inside < kTriesInsideMax && machine_.one_in(16)) queue_.let_go(one);
  }
  const auto next = sched::after_slice(queue_);
  if (next == sched::AfterSlice::kIsGivenUp) return give_up(seat);
  if (next == sched::AfterSlice::kGoesOn) return;
  queue_.end_slice(id);
  seat.is_queued = true;
  seat.due_ns = 0;
  seat.session->state->suspend();
  unit_.clear();
}

// It will be begun again.
void Lane::give_up(Seat& seat) {
  unit_.clear();
  queue_.charge(seat.step.session, std::exchange(spent_ns_, 0), now_ns_);
  seat.session->state->pause();
  seat.left_ns = seat.whole_ns;
  enqueue(seat, Arrival::kAgain);
}

void Lane::end_unit() {
  const std::vector<SessionId> unit = std::exchange(unit_, {});
  const uint64_t share_ns = std::exchange(spent_ns_, 0) / unit.size();
  for (const SessionId id : unit) {
    const bool is_overcharged = machine_.mistake() == Mistake::kTimeIsOvercharged && id.value % 2;
    queue_.charge(id, is_overcharged ? 50 * share_ns : share_ns, now_ns_);
  }
  for (const SessionId id : unit) end_step(seats_.at(id));
}

void Lane::end_step(Seat& seat) {
  AttachedSession& session = *seat.session;
  gc::StepRecord record = session.state->record();
  const bool fails = std::exchange(seat.is_refused, false) || is_cancelled(session);
  const bool goes_on = seat.steps > 0 && !fails;
  record.kind =
      fails ? gc::StepKind::kFailed : (goes_on ? gc::StepKind::kToken : gc::StepKind::kDone);
  if (!goes_on) ++record.completed;
  session.state->stage_record(record);
  session.state->commit();
  session.state->set_idle_ref_bytes(machine_.below(session.ref_bytes_granted + 1));
  if (goes_on) {
    --seat.steps;
    next_step(seat);
    return enqueue(seat, Arrival::kGoesOn);
  }
  write_word(session.memory, kCompleted, record.completed);
  find_submission(seat, Arrival::kNext);
}

// --- what the queue is judged by

bool Lane::is_ready(const Seat& seat) const {
  return seat.is_queued && !queue_.held().contains(seat.step.session);
}

void Lane::check_pick(const Seat& seat) {
  const auto who = [&] {
    return fmt::format("session {:012x} is picked", seat.step.session.value);
  };
  if (!is_ready(seat)) fail(who() + ", and is not ready");
  for (const auto& [id, other] : seats_) {
    if (!is_ready(other)) continue;
    if (is_idle(seat.service) && !is_idle(other.service)) fail(who() + " and idle, others are not");
    const bool is_fifo = queue_.policy() == SchedulePolicy::kFifo;
    if (is_fifo && is_idle(other.service) == is_idle(seat.service) && other.came < seat.came) {
      fail(who() + ", and another came before");
    }
  }
}

void Lane::check() {
  const size_t accounts = QueueForTests::accounts(queue_);
  if (accounts != seats_.size()) {
    fail(fmt::format("it has {} accounts of {} sessions", accounts, seats_.size()));
  }
  if (wrong_) return;
  if (queue_.policy() == SchedulePolicy::kFair) check_shares();
}

void Lane::check_shares() {
  const auto longest_ns = static_cast<int64_t>(std::max(longest_ns_, kUnitNs));
  for (auto& [id, seat] : seats_) {
    const int64_t weight = weight_of(seat.service);
    const auto time_of = [&](int64_t virtual_ns) { return virtual_ns * weight / kWeights[0]; };
    const int64_t before_ns = std::exchange(seat.virtual_ns, QueueForTests::virtual_ns(queue_, id));
    const bool was_long = std::exchange(seat.was_long, seat.can_be_paused || seat.step.is_long);
    const int64_t back_ns = time_of(before_ns - seat.virtual_ns);
    if (back_ns > (was_long || seat.was_long ? 4 * longest_ns : 0)) {
      fail(fmt::format("session {:012x}'s virtual time goes back by {} ns", id.value, back_ns));
    }
    if (!is_ready(seat)) continue;
    if (seat.due_ns > 2 * longest_ns) {
      fail(fmt::format("session {:012x} has work, and was due {} ns since it has", id.value,
                       seat.due_ns));
    }
    const int64_t lag_ns = time_of(QueueForTests::now_ns(queue_, id) - seat.virtual_ns);
    if (std::abs(lag_ns) > 4 * longest_ns) {
      fail(fmt::format("session {:012x} is {} ns from its share", id.value, lag_ns));
    }
  }
}

}  // namespace djinn::daemon::simulation
