// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/load.h"

#include <gtest/gtest.h>

#include <array>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

TEST(LoadPhase, a_load_goes_forward_and_may_end_anywhere) {
  using enum LoadPhase;
  constexpr std::array kStates{kWaiting, kIdentifying, kDeciding, kPlanning,  kGranting,
                               kReading, kHashing,     kHashed,   kComparing, kEnded};
  constexpr auto kLegal = std::to_array<Transition<LoadPhase>>({
      {kWaiting, kIdentifying},
      {kIdentifying, kDeciding},
      {kDeciding, kPlanning},
      {kPlanning, kGranting},
      {kGranting, kReading},
      {kGranting, kComparing},
      {kReading, kHashing},
      {kHashing, kHashed},
      {kWaiting, kEnded},
      {kIdentifying, kEnded},
      {kDeciding, kEnded},
      {kPlanning, kEnded},
      {kGranting, kEnded},
      {kReading, kEnded},
      {kHashing, kEnded},
      {kHashed, kEnded},
      {kComparing, kEnded},
  });
  StateForTests::expect_legal<LoadPhase>(kStates, kLegal);
}

}  // namespace
}  // namespace djinn::daemon
