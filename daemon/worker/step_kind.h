// SPDX-License-Identifier: Apache-2.0

// What kind of step a session's next one is: those of a kind take about the same time.
#pragma once

#include <cstdint>

#include "daemon/worker/session.h"

namespace djinn::worker {

struct StepKind {
  uint64_t number = 0;    // for sched::StepTimes
  bool is_token = false;  // of a generation, and not its first
};

// By operation and program; of a generation the first step is told from the others, and is of a
// kind of its session's own, since its prompt is not read yet; so is a graph that is run once, by
// its size. The client's word in the ring is believed: whatever it says, it is charged for the time
// that the step takes. Precondition: its ring has found a submission that is not complete. Lane's
// thread.
[[nodiscard]] StepKind kind_of_next_step(Session& session);

}  // namespace djinn::worker
