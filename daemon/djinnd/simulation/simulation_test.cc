// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace djinn::daemon::simulation {
namespace {

constexpr uint64_t kSeeds = 500;
// A sanitizer makes a seed ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeedsWithoutMistake = 30;
#else
constexpr uint64_t kSeedsWithoutMistake = kSeeds;
#endif

class Simulation : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { tell_on_abort(); }
};

// The first seed that finds the mistake.
std::optional<Outcome> found_with(Mistake mistake) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Outcome outcome = simulate(seed, mistake);
    if (outcome.failure) return outcome;
  }
  return std::nullopt;
}

TEST_F(Simulation, no_seed_finds_anything) {
  for (uint64_t seed = 1; seed <= kSeedsWithoutMistake; ++seed) {
    const Outcome outcome = simulate(seed);
    EXPECT_FALSE(outcome.failure) << outcome_text(outcome);
  }
}

TEST_F(Simulation, once_a_seed_decides_all_that_happens) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Outcome first = simulate(seed);
    const Outcome second = simulate(seed);
    EXPECT_GT(first.events, 0U);
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_EQ(first.lines, second.lines) << "seed " << seed;
  }
  EXPECT_NE(simulate(1).hash, simulate(2).hash);
}

TEST_F(Simulation, once_all_memory_that_djinnd_makes_itself_fails_in_some_seed) {
  std::set<std::string> wanted{"session", "state", "payload", "record"};
  for (uint64_t seed = 1; seed <= kSeeds && !wanted.empty(); ++seed) {
    const std::vector<std::string> lines = simulate(seed).lines;
    std::erase_if(wanted, [&](const std::string& kind) {
      return std::ranges::any_of(lines, [&](const std::string& line) {
        return line.ends_with("there is no memory for djinn-" + kind);
      });
    });
  }
  EXPECT_THAT(wanted, ::testing::IsEmpty());
}

TEST_F(Simulation, once_a_failing_seed_prints_the_line_that_repeats_it) {
  const auto found = found_with(Mistake::kFreedIsNotTold);
  ASSERT_TRUE(found.has_value());
  const std::string text = outcome_text(*found);
  EXPECT_NE(text.find("again: djinnd-simulation --seed " + std::to_string(found->seed)),
            std::string::npos)
      << text;
}

TEST_F(Simulation, once_memory_that_is_freed_and_stays_on_the_account_is_found) {
  EXPECT_TRUE(found_with(Mistake::kFreedIsNotTold).has_value());
}

TEST_F(Simulation, once_memory_that_is_taken_off_the_account_and_stays_is_found) {
  EXPECT_TRUE(found_with(Mistake::kExtentIsForgotten).has_value());
}

TEST_F(Simulation, once_a_waiter_whose_worker_has_died_unseen_is_found) {
  EXPECT_TRUE(found_with(Mistake::kDeathIsNotSeen).has_value());
}

TEST_F(Simulation, once_a_lost_wake_is_found) {
  EXPECT_TRUE(found_with(Mistake::kWakeIsLost).has_value());
}

TEST_F(Simulation, once_a_model_that_is_taken_for_one_of_another_device_is_found) {
  EXPECT_TRUE(found_with(Mistake::kDeviceIsMixedUp).has_value());
}

TEST_F(Simulation, once_a_descriptor_that_is_kept_of_no_model_is_found) {
  EXPECT_TRUE(found_with(Mistake::kStoreForgetsNothing).has_value());
}

TEST_F(Simulation, once_a_djinnd_that_winds_up_and_does_not_end_is_found) {
  EXPECT_TRUE(found_with(Mistake::kStopIsLost).has_value());
}

TEST_F(Simulation, once_who_waits_for_a_worker_whose_successor_does_not_come_is_found) {
  EXPECT_TRUE(found_with(Mistake::kDeathIsAlwaysNew).has_value());
}

TEST_F(Simulation, once_who_is_refused_memory_between_a_worker_and_its_successor_is_found) {
  EXPECT_TRUE(found_with(Mistake::kDeathIsAlwaysOld).has_value());
}

TEST_F(Simulation, once_a_lease_that_outlives_its_session_is_found) {
  EXPECT_TRUE(found_with(Mistake::kLeaseOutlives).has_value());
}

TEST_F(Simulation, once_a_session_of_the_class_idle_that_computes_while_another_is_ready_is_found) {
  EXPECT_TRUE(found_with(Mistake::kClassIsMixedUp).has_value());
}

TEST_F(Simulation, once_a_session_that_is_passed_over_is_found) {
  EXPECT_TRUE(found_with(Mistake::kTimeIsOvercharged).has_value());
}

TEST_F(Simulation, once_an_account_of_a_lane_that_outlives_its_session_is_found) {
  EXPECT_TRUE(found_with(Mistake::kAccountOutlives).has_value());
}

}  // namespace
}  // namespace djinn::daemon::simulation
