// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/simulation.h"

#include <gtest/gtest.h>

namespace djinn::daemon::simulation {
namespace {

TEST(Simulation, a_seed_decides_all_that_happens) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Outcome first = simulate(seed);
    const Outcome second = simulate(seed);
    EXPECT_GT(first.events, 0U);
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
  }
}

}  // namespace
}  // namespace djinn::daemon::simulation
