// SPDX-License-Identifier: Apache-2.0

// Seat: what a session is to its lane: how it stands, and what is known of its next step.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/worker/program_table.h"
#include "daemon/worker/runner.h"
#include "daemon/worker/session.h"
#include "daemon/worker/step_kind.h"
#include "kernel/base/clock.h"
#include "kernel/sched/step_times.h"

namespace djinn::worker {

// Lane's thread.
struct Seat {
  // invariant: kQueued == its account in the queue is ready, or picked in this turn
  enum class Standing : uint8_t {
    kIdle,     // nothing is submitted
    kQueued,   // it has work
    kBlocked,  // until its client reads completions
    kWaiting,  // for what its step awaits
  };

  Session* session = nullptr;
  Standing standing = Standing::kIdle;
  bool is_cold = false;       // its ring is not looked at before it has rung (rings.h)
  bool has_rung = false;      // it was cold until then, and was not looked at since
  uint64_t worked_ns = 0;     // when it had work last
  StepKind kind;              // of the step that is queued
  StepBatch batch;            // likewise
  uint64_t predicted_ns = 0;  // likewise
  bool is_sure = false;       // of that
  uint64_t token_kind = 0;    // of its runs that made a token; 0: it had none
  uint64_t long_kind = 0;     // of its last one that was truly long (slices.h); 0: none was
  bool is_held_back = false;  // of the step that is queued: it was abandoned inside a pause
  uint32_t tries_inside = 0;  // likewise: how often for its time
  uint64_t begin_by_ns = 0;   // of the submission that waits, and has not begun; 0: none does
  uint32_t refusals = 0;      // of its submissions with deadlines, since one was in time
  // Behind the step that is queued, once somebody has asked: to tell takes reading the block.
  std::optional<StepsBehind> behind;

  [[nodiscard]] SessionId id() const { return session->id(); }
  [[nodiscard]] bool is_late(uint64_t now_ns) const {
    return begin_by_ns != 0 && now_ns > begin_by_ns;
  }
  struct Ahead {
    bool is_submitted = false;
    // Where none of the step's kind ever ran, to work out what it computes began then; else 0.
    uint64_t worked_out_since_ns = 0;
  };
  // What its next step is, and how long it will take.
  Ahead look_ahead(const ProgramTable& programs, sched::StepTimes& times, const Clock& clock);
  // What is behind that, asked once for each step.
  const StepsBehind& steps_behind(const ProgramTable& programs);
  // How its step ended. begun_ns: when one that did not end, or could not begin, was tried.
  void note(Runner::Advance advance, uint64_t begun_ns);
};

}  // namespace djinn::worker
