// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/worker_supervisor.h"

#include <gtest/gtest.h>

#include <array>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

TEST(WorkerPhase, a_worker_that_died_is_waited_for_before_the_next_is_ready) {
  using enum WorkerPhase;
  constexpr std::array kStates{kAbsent, kWaiting, kReady, kBackingOff};
  constexpr auto kLegal = std::to_array<Transition<WorkerPhase>>({
      {kAbsent, kAbsent},
      {kAbsent, kWaiting},
      {kWaiting, kAbsent},
      {kWaiting, kReady},
      {kReady, kAbsent},
      {kReady, kBackingOff},
      {kBackingOff, kAbsent},
      {kBackingOff, kWaiting},
  });
  StateForTests::expect_legal<WorkerPhase>(kStates, kLegal);
}

}  // namespace
}  // namespace djinn::daemon
