// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/model.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

using enum ModelPhase;

constexpr std::array kPhases{kLoading, kResident, kEvicting, kOnDisk, kUnloading};
const std::set<std::pair<ModelPhase, ModelPhase>> kLegal{
    {kLoading, kResident}, {kLoading, kOnDisk}, {kResident, kEvicting}, {kResident, kUnloading},
    {kEvicting, kOnDisk},  {kOnDisk, kLoading}, {kOnDisk, kUnloading},
};

TEST(ModelPhase, what_may_follow_is_what_the_table_lists) {
  for (const ModelPhase from : kPhases) {
    for (const ModelPhase to : kPhases) {
      EXPECT_EQ(may_follow(from, to), kLegal.contains({from, to}))
          << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
  }
}

TEST(ModelPhase, a_model_enters_what_may_follow_and_nothing_else) {
  for (const ModelPhase from : kPhases) {
    for (const ModelPhase to : kPhases) {
      Model model;
      StateForTests::set(model.phase, from);
      if (kLegal.contains({from, to})) {
        StateForTests::enter(model.phase, to);
        EXPECT_TRUE(model.phase == to);
      } else {
        EXPECT_DEATH(StateForTests::enter(model.phase, to), "may_follow");
      }
    }
  }
}

}  // namespace
}  // namespace djinn::daemon
