// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/seat.h"

#include "kernel/base/assert.h"

namespace djinn::worker {

Seat::Ahead Seat::look_ahead(const ProgramTable& programs, sched::StepTimes& times,
                             const Clock& clock) {
  auto next = NextStep::of(*session, programs);
  Ahead ahead{next.has_value()};
  kind = next ? next->kind() : StepKind{};
  behind.reset();
  if (next && !times.knows(kind.number)) {
    ahead.worked_out_since_ns = clock.monotonic_ns();
    if (const auto expected = next->expected()) {
      times.expect(kind.number, expected->work, expected->kernels);
    }
  }
  batch = next ? next->batch() : StepBatch{};
  predicted_ns = times.predict_ns(kind.number);
  is_sure = times.is_sure(kind.number);
  return ahead;
}

const StepsBehind& Seat::steps_behind(const ProgramTable& programs) {
  if (!behind) {
    auto next = NextStep::of(*session, programs);
    behind = next ? next->behind() : StepsBehind{};
  }
  return *behind;
}

void Seat::note(Runner::Advance advance, uint64_t begun_ns) {
  switch (advance) {
    case Runner::Advance::kWorked:
    case Runner::Advance::kWaited:
    case Runner::Advance::kIdle:
    case Runner::Advance::kAbandoned:
      standing = Standing::kIdle;
      break;
    case Runner::Advance::kBlocked:
      standing = Standing::kBlocked;
      break;
    case Runner::Advance::kWaiting:
      standing = Standing::kWaiting;
      break;
    case Runner::Advance::kJoins:
      DJINN_ASSERT(false);  // its step has not ended
      break;
  }
  const bool had_nothing =
      advance == Runner::Advance::kIdle || advance == Runner::Advance::kBlocked;
  if (had_nothing) session->progression.could_not_begin_before(begun_ns);
}

}  // namespace djinn::worker
