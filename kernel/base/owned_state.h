// SPDX-License-Identifier: Apache-2.0

// OwnedState: the state of a thing that everybody may read and one class alone changes, by
// transitions that a table lists.
//
//   State   an enum; its first value, zero, is the state in which a thing begins. Beside it stands
//           bool may_follow(State from, State to), which looks the table up with is_listed()
//   Owner   the class that changes it
//
// Owned: likewise, for what is no enum: a set, a list. It has no table.
//
// invariant: each change of a state was to one that may follow it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn {

template <typename State>
struct Transition {
  State from;
  State to;
  friend bool operator==(const Transition&, const Transition&) = default;
};

template <typename State, size_t kCount>
[[nodiscard]] constexpr bool is_listed(const std::array<Transition<State>, kCount>& legal,
                                       State from, State to) {
  return std::ranges::find(legal, Transition<State>{from, to}) != legal.end();
}

template <typename State, typename Owner>
class OwnedState {
 public:
  // It is read as the enum that it is.
  operator State() const { return state_; }

 private:
  friend Owner;
  friend struct StateForTests;

  // Asserts that the transition is legal.
  void enter(State next) {
    DJINN_ASSERT(may_follow(state_, next));
    state_ = next;
  }

  State state_{};
};

template <typename T, typename Owner>
class Owned {
 public:
  Owned() = default;
  // What it begins with.
  explicit Owned(T value) : value_(std::move(value)) {}

  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }

 private:
  friend Owner;
  friend struct StateForTests;

  T value_{};
};

}  // namespace djinn
