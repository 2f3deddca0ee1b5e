// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/sequence_group.h"

#include <gtest/gtest.h>

#include <array>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

TEST(GroupPhase, a_group_enters_what_may_follow_and_nothing_else) {
  using enum GroupPhase;
  constexpr std::array kStates{kAdding, kLive, kDropping};
  constexpr auto kLegal = std::to_array<Transition<GroupPhase>>({
      {kAdding, kLive},
      {kAdding, kDropping},
      {kLive, kDropping},
  });
  StateForTests::expect_legal<GroupPhase>(kStates, kLegal);
}

TEST(GroupPlace, a_group_moves_where_it_may_and_nowhere_else) {
  using enum GroupPlace;
  constexpr std::array kStates{kMemory, kSpilling, kSpilled};
  static_assert(kStates.size() == kGroupPlaces);
  constexpr auto kLegal = std::to_array<Transition<GroupPlace>>({
      {kMemory, kSpilling},
      {kSpilling, kMemory},
      {kSpilling, kSpilled},
      {kSpilled, kMemory},
  });
  StateForTests::expect_legal<GroupPlace>(kStates, kLegal);
}

}  // namespace
}  // namespace djinn::daemon
