// SPDX-License-Identifier: Apache-2.0

// What kind of step a session's next one is: those of a kind take about the same time. What one of
// a kind that never ran computes. And with whose steps it can be computed.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/worker/program_table.h"
#include "daemon/worker/step.h"
#include "kernel/sched/step_times.h"

namespace djinn::worker {

struct StepKind {
  uint64_t number = 0;    // for sched::StepTimes
  bool is_token = false;  // of a generation, and not its first
};

// By operation and program; of a generation the first step is told from the others, and by the
// length of its prompt. A graph that is run once is of a kind of its session's own, by its size.
// The client's word in the ring is believed, and what its block says: whatever that is, it is
// charged for the time that the step takes. Precondition: its ring has found a submission that is
// not complete. Lane's thread.
[[nodiscard]] StepKind kind_of_next_step(Session& session);

// What comes behind that step, of the same submission: tokens of a generation, as many as it may
// make, and their kind. Precondition as above.
struct StepsBehind {
  uint64_t count = 0;
  uint64_t kind = 0;
  uint64_t parts = 0;  // of the prompt, before those, each taken for one like the next step
};
[[nodiscard]] StepsBehind steps_behind(Session& session);

struct ExpectedStep {
  sched::Work work;
  sched::Kernels kernels = sched::Kernels::kExact;
};

// What that step computes, if it runs a program that is here; nothing of other steps. Where its
// client's block says nonsense, nothing, or something wrong: the step itself finds out. Linear in
// the program's size. Lane's thread.
[[nodiscard]] std::optional<ExpectedStep> expected_step(Session& session,
                                                        const ProgramTable& programs);

// Token steps of one key can be computed together: those of generations, and runs that append one
// token to each row of a sequence group, as the loop of a client submits them, by one program whose
// token steps join (ProgramTable::joins_steps).
struct StepBatch {
  uint64_t key = 0;   // 0: the step is computed by itself
  uint32_t rows = 0;  // that it has
  friend bool operator==(const StepBatch&, const StepBatch&) = default;
};

// Of the session's next step. Of a submission that is to be picked up its client's word is taken,
// which may be another one then. Lane's thread.
[[nodiscard]] StepBatch batch_of_next_step(Session& session, const ProgramTable& programs);
// Of a step that has begun. Lane's thread.
[[nodiscard]] StepBatch batch_of(const Step& step, const ProgramTable& programs);

}  // namespace djinn::worker
