// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/session.h"

#include <gtest/gtest.h>

#include <array>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

TEST(SessionPhase, a_session_lives_and_leaves_and_never_comes_back) {
  using enum SessionPhase;
  constexpr std::array kStates{kGreeting, kAttaching, kLive, kLeaving};
  constexpr auto kLegal = std::to_array<Transition<SessionPhase>>({
      {kGreeting, kAttaching},
      {kGreeting, kLive},
      {kGreeting, kLeaving},
      {kAttaching, kGreeting},
      {kAttaching, kLive},
      {kAttaching, kLeaving},
      {kLive, kLeaving},
  });
  StateForTests::expect_legal<SessionPhase>(kStates, kLegal);
}

}  // namespace
}  // namespace djinn::daemon
