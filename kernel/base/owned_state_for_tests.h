// SPDX-License-Identifier: Apache-2.0

// What tests do in place of the class that owns a state.
#pragma once

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
};

}  // namespace djinn
