// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/model.h"

#include <gtest/gtest.h>

#include <array>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

TEST(ModelPhase, a_model_enters_what_may_follow_and_nothing_else) {
  using enum ModelPhase;
  constexpr std::array kStates{kLoading, kResident, kEvicting, kOnDisk, kUnloading};
  constexpr auto kLegal = std::to_array<Transition<ModelPhase>>({
      {kLoading, kResident},
      {kLoading, kOnDisk},
      {kResident, kEvicting},
      {kResident, kUnloading},
      {kEvicting, kOnDisk},
      {kEvicting, kResident},
      {kOnDisk, kLoading},
      {kOnDisk, kUnloading},
  });
  StateForTests::expect_legal<ModelPhase>(kStates, kLegal);
}

}  // namespace
}  // namespace djinn::daemon
