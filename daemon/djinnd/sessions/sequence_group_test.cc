// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/sequence_group.h"

#include <gtest/gtest.h>

#include <set>
#include <span>
#include <utility>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr std::array kPhases{GroupPhase::kAdding, GroupPhase::kLive, GroupPhase::kDropping};
const std::set<std::pair<GroupPhase, GroupPhase>> kLegalPhases{
    {GroupPhase::kAdding, GroupPhase::kLive},
    {GroupPhase::kAdding, GroupPhase::kDropping},
    {GroupPhase::kLive, GroupPhase::kDropping},
};
constexpr std::array kPlaces{GroupPlace::kMemory, GroupPlace::kSpilling, GroupPlace::kSpilled};
static_assert(kPlaces.size() == kGroupPlaces);
const std::set<std::pair<GroupPlace, GroupPlace>> kLegalPlaces{
    {GroupPlace::kMemory, GroupPlace::kSpilling},
    {GroupPlace::kSpilling, GroupPlace::kMemory},
    {GroupPlace::kSpilling, GroupPlace::kSpilled},
    {GroupPlace::kSpilled, GroupPlace::kMemory},
};

// Enters each of the states from each of them.
template <typename State>
void enter_all(std::span<const State> states, const std::set<std::pair<State, State>>& legal,
               OwnedState<State, Sequences> SequenceGroup::*member) {
  for (const State from : states) {
    for (const State to : states) {
      SequenceGroup group;
      StateForTests::set(group.*member, from);
      if (legal.contains({from, to})) {
        StateForTests::enter(group.*member, to);
        EXPECT_TRUE(group.*member == to);
      } else {
        EXPECT_DEATH(StateForTests::enter(group.*member, to), "may_follow");
      }
    }
  }
}

TEST(GroupPhase, a_group_enters_what_may_follow_and_nothing_else) {
  enter_all<GroupPhase>(kPhases, kLegalPhases, &SequenceGroup::phase);
}

TEST(GroupPlace, a_group_moves_where_it_may_and_nowhere_else) {
  enter_all<GroupPlace>(kPlaces, kLegalPlaces, &SequenceGroup::place);
}

}  // namespace
}  // namespace djinn::daemon
