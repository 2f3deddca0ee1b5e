// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/owned_state.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace djinn {
namespace {

enum class Lamp : uint8_t { kOff, kOn, kBroken };
constexpr std::array<Transition<Lamp>, 3> kLegal{{
    {Lamp::kOff, Lamp::kOn},
    {Lamp::kOn, Lamp::kOff},
    {Lamp::kOn, Lamp::kBroken},
}};
bool may_follow(Lamp from, Lamp to) {
  return is_listed(kLegal, from, to);
}

class Switch {
 public:
  void turn(Lamp next) { lamp.enter(next); }
  OwnedState<Lamp, Switch> lamp;
};

static_assert(!std::is_constructible_v<OwnedState<Lamp, Switch>, Lamp>);

class Shelf {
 public:
  static void write(Owned<int, Shelf>& held) { ++held.value_; }
};

template <typename T>
concept Writable = requires(T& held) {
  *held = 4;
};
static_assert(!Writable<Owned<int, Shelf>>);

TEST(Owned, is_read_by_everybody_and_written_by_its_owner) {
  Owned<int, Shelf> held(3);
  EXPECT_EQ(*held, 3);
  Shelf::write(held);
  EXPECT_EQ(*held, 4);
}

TEST(OwnedState, begins_with_the_first_value_and_follows_the_table) {
  Switch one;
  EXPECT_TRUE(one.lamp == Lamp::kOff);
  one.turn(Lamp::kOn);
  one.turn(Lamp::kBroken);
  EXPECT_TRUE(one.lamp == Lamp::kBroken);
}

TEST(OwnedState, what_the_table_does_not_list_is_a_mistake_of_ours) {
  Switch one;
  EXPECT_DEATH(one.turn(Lamp::kBroken), "assertion failed");
  EXPECT_DEATH(one.turn(Lamp::kOff), "assertion failed") << "a state does not follow itself";
}

}  // namespace
}  // namespace djinn
