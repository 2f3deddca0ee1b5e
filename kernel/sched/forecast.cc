// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/forecast.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/sched/turns.h"

namespace djinn::sched {
namespace {

// Longer than any wait that somebody asks about: a month. A machine may be up for longer.
constexpr uint64_t kNsMax = uint64_t{31} * 24 * 3600 * kNsPerSecond;

uint64_t plus(uint64_t a, uint64_t b) {
  return std::min(checked_add(a, b).value_or(kNsMax), kNsMax);
}

uint64_t times(uint64_t a, uint64_t b) {
  return std::min(checked_mul(a, b).value_or(kNsMax), kNsMax);
}

// A lane without kernels, whose clock is moved by predictions.
class Foresight {
 public:
  Foresight(Queue queue, uint64_t now_ns, const BacklogOf& backlog_of)
      : queue_(std::move(queue)), begun_ns_(now_ns), backlog_of_(backlog_of) {}

  Forecast wait_of(SessionId session) {
    for (const SessionId id : queue_.picked()) go_on(id);
    // Nobody looks further than that, and virtual times of so many months would overflow.
    for (size_t picks = 0; picks < kPicksForeseen && passed_ns_ < kNsMax; ++picks) {
      auto turn = next_turn(queue_, now_ns());
      if (turn && turn->kind == TurnKind::kGiveUp) {
        give_up(turn->session);
        turn = next_turn(queue_, now_ns());
      }
      DJINN_ASSERT(turn);  // who holds the session is ready
      if (turn->session == session) return {passed_ns_, false};
      go_on(turn->session);
    }
    return {passed_ns_, true};
  }

 private:
  [[nodiscard]] uint64_t now_ns() const { return begun_ns_ + passed_ns_; }

  Backlog& left_of(SessionId id) {
    const auto [found, is_new] = backlogs_.try_emplace(id);
    if (is_new) found->second = backlog_of_(id);
    return found->second;
  }

  // The step of a picked one, or a slice of it; the whole submission where it keeps the lane.
  void go_on(SessionId id) {
    Backlog& left = left_of(id);
    if (queue_.policy() == SchedulePolicy::kFifo) {
      return end_step(id, plus(left.step_ns, times(left.steps, left.each_ns)));
    }
    const bool goes_on = queue_.slicing() == id;
    const uint64_t slice_ns = goes_on ? queue_.slice_ns() : kUnitNs;
    if (left.has_slices && left.step_ns > slice_ns && (goes_on || !queue_.has_slices())) {
      return end_slice(id, left, slice_ns);
    }
    end_step(id, left.step_ns);
    queue_next(id, left);
  }

  void end_slice(SessionId id, Backlog& left, uint64_t took_ns) {
    charge_slice(queue_, id, took_ns);
    queue_.end_slice(id);
    left.step_ns -= took_ns;
    passed_ns_ = plus(passed_ns_, took_ns);
  }

  void end_step(SessionId id, uint64_t took_ns) {
    passed_ns_ = plus(passed_ns_, took_ns);
    queue_.charge(id, took_ns, now_ns());
  }

  void queue_next(SessionId id, Backlog& left) {
    if (left.steps > 0) {
      --left.steps;
      left.step_ns = left.each_ns;
      left.has_slices = left.is_long = false;
      return enqueue(id, Arrival::kGoesOn, left);
    }
    if (left.behind == 0) return;
    --left.behind;
    left.step_ns = left.behind_ns;
    enqueue(id, Arrival::kNext, left);
  }

  void enqueue(SessionId id, Arrival arrival, const Backlog& left) {
    queue_.enqueue({id, arrival, left.step_ns, 0, left.is_long, left.is_sure}, now_ns());
  }

  // The idle one's run is begun again when nobody else's can be.
  void give_up(SessionId id) {
    queue_.charge(id, 0, now_ns());
    Backlog& left = left_of(id);
    left.is_long = true;
    enqueue(id, Arrival::kAgain, left);
  }

  Queue queue_;
  const uint64_t begun_ns_;
  uint64_t passed_ns_ = 0;
  const BacklogOf& backlog_of_;
  std::map<SessionId, Backlog> backlogs_;
};

}  // namespace

Forecast forecast(Queue queue, SessionId session, uint64_t now_ns, const BacklogOf& backlog_of) {
  return Foresight(std::move(queue), now_ns, backlog_of).wait_of(session);
}

Forecast forecast(Queue queue, const ReadyStep& step, uint64_t now_ns,
                  const BacklogOf& backlog_of) {
  queue.enqueue(step, now_ns);
  return forecast(std::move(queue), step.session, now_ns, backlog_of);
}

}  // namespace djinn::sched
