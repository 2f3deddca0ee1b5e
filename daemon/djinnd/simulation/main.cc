// SPDX-License-Identifier: Apache-2.0

// djinnd-simulation runs seeds. It exits with 1 if one of them finds something.

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "daemon/djinnd/simulation/simulation.h"

namespace djinn::daemon::simulation {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Runs djinnd on a simulated machine.");
  uint64_t seed = 0;
  uint64_t first = 1;
  uint64_t count = 500;
  auto* const one = app.add_option("--seed", seed, "runs this one, and tells what happened");
  app.add_option("--first", first, "the first of several");
  app.add_option("--seeds", count, "how many");
  CLI11_PARSE(app, argc, argv);
  tell_on_abort();
  if (*one) {
    const Outcome outcome = simulate(seed);
    for (const std::string& line : outcome.lines) fmt::print("{}\n", line);
    fmt::print("seed {}: {} events, hash {:016x}: {}\n", seed, outcome.events, outcome.hash,
               outcome.failure.value_or("nothing is found"));
    return outcome.failure ? 1 : 0;
  }
  uint64_t found = 0;
  uint64_t events = 0;
  for (uint64_t next = first; next < first + count; ++next) {
    const Outcome outcome = simulate(next);
    events += outcome.events;
    if (!outcome.failure) continue;
    ++found;
    fmt::print("{}", outcome_text(outcome));
  }
  fmt::print("{} seeds, {} events: {} found something\n", count, events, found);
  return found > 0 ? 1 : 0;
}

}  // namespace
}  // namespace djinn::daemon::simulation

int main(int argc, char** argv) {
  return djinn::daemon::simulation::run(argc, argv);
}
