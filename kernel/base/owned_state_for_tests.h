// SPDX-License-Identifier: Apache-2.0

// Lets tests set a state in place of the class that owns it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "kernel/base/owned_state.h"

namespace djinn {

struct StateForTests {
  // Whether or not it may follow.
  template <typename State, typename Owner>
  static void set(OwnedState<State, Owner>& state, State next) {
    state.state_ = next;
  }
  template <typename State, typename Owner>
  static void enter(OwnedState<State, Owner>& state, State next) {
    state.enter(next);
  }
  template <typename T, typename Owner>
  static T& value_of(Owned<T, Owner>& owned) {
    return owned.value_;
  }
  // Enters each of the states from each of them: those listed and no others may follow.
  template <typename State>
  static void expect_legal(std::span<const State> states,
                           std::span<const Transition<State>> legal) {
    for (const State from : states) {
      for (const State to : states) {
        OwnedState<State, StateForTests> state;
        set(state, from);
        if (std::ranges::find(legal, Transition<State>{from, to}) != legal.end()) {
          enter(state, to);
          EXPECT_TRUE(state == to);
        } else {
          EXPECT_DEATH(enter(state, to), "may_follow")
              << static_cast<int>(from) << " to " << static_cast<int>(to);
        }
      }
    }
  }
};

}  // namespace djinn
