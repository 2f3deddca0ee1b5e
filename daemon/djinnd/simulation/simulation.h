// SPDX-License-Identifier: Apache-2.0

// One run of a simulated djinnd: the real Daemon on a simulated machine, from a seed.
//
//   storm    clients, workers, loaders and an administrator do what the seed says, and anything may
//            fail
//   calm     nobody begins anything new, nothing fails: whoever waits must be answered
//   leave    clients hang up: nothing of theirs is left
//   empty    models are unloaded, workers retired: nothing is held
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/simulation/machine.h"

namespace djinn::daemon::simulation {

struct Outcome {
  uint64_t seed = 0;
  uint64_t events = 0;
  uint64_t hash = 0;                   // of all that happened
  std::optional<std::string> failure;  // what did not hold
  std::vector<std::string> lines;      // that tell what happened
};

Outcome simulate(uint64_t seed, Mistake mistake = Mistake::kNone);

// What was found, and the line that repeats it.
[[nodiscard]] std::string outcome_text(const Outcome& outcome);
// Has the same printed where an assertion ends the process.
void tell_on_abort();

}  // namespace djinn::daemon::simulation
