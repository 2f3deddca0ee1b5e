// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/turns.h"

namespace djinn::sched {

bool is_wait_next(Queue& queue, uint64_t now_ns) {
  return !queue.must_give_up() && queue.is_worth_waiting(now_ns);
}

std::optional<Turn> next_turn(Queue& queue, uint64_t now_ns) {
  if (queue.must_give_up()) {
    const SessionId session = queue.slicing();
    queue.resume(session, now_ns);
    return Turn{session, TurnKind::kGiveUp};
  }
  const auto picked = queue.pick(now_ns);
  if (!picked) return std::nullopt;
  return Turn{*picked, *picked == queue.slicing() ? TurnKind::kSlice : TurnKind::kStep};
}

std::vector<SessionId> unit_of(Queue& queue, SessionId picked, uint64_t batch_key, uint64_t now_ns,
                               const std::function<bool(SessionId)>& takes) {
  std::vector<SessionId> unit{picked};
  if (batch_key == 0) return unit;
  const bool is_idle = queue.service_of(picked) == ServiceClass::kIdle;
  for (const SessionId id : queue.ready_with(batch_key)) {
    if (!is_idle && queue.service_of(id) == ServiceClass::kIdle) continue;
    if (!takes(id)) continue;
    queue.join(id, now_ns);
    unit.push_back(id);
  }
  return unit;
}

void charge_slice(Queue& queue, SessionId session, uint64_t measured_ns) {
  if (!queue.has_slices()) queue.begin_slices(session);
  queue.charge_running(session, measured_ns);
}

AfterSlice after_slice(const Queue& queue) {
  if (queue.must_give_up()) return AfterSlice::kIsGivenUp;
  return queue.has_ready() ? AfterSlice::kGivesWay : AfterSlice::kGoesOn;
}

}  // namespace djinn::sched
