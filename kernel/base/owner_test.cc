// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/owner.h"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

namespace djinn {
namespace {

TEST(Owner, a_user_id_becomes_one_only_where_it_is_said) {
  static_assert(!std::is_convertible_v<uint32_t, Owner>);
  static_assert(!std::is_constructible_v<Owner, uint32_t>);
  EXPECT_EQ(Owner::of_user(1000).user(), 1000u);
  EXPECT_EQ(Owner::of_user(1000).number(), 1000u);
  EXPECT_NE(Owner::of_user(1000), Owner::of_user(1001));
}

TEST(Owner, root_is_somebody_and_without_a_value_it_is_nobody) {
  EXPECT_TRUE(Owner::of_user(0).valid());
  EXPECT_FALSE(Owner().valid());
  EXPECT_NE(Owner(), Owner::of_user(0));
  EXPECT_EQ(Owner().user(), std::nullopt);
}

TEST(Owner, its_number_leads_back_to_it_and_others_lead_nowhere) {
  constexpr uint64_t kLargest = std::numeric_limits<uint64_t>::max();
  for (const uint64_t number : {uint64_t{0}, uint64_t{0xFFFF'FFFF}, uint64_t{1} << 63, kLargest}) {
    const std::optional<Owner> owner = Owner::of_number(number);
    ASSERT_TRUE(owner.has_value()) << number;
    EXPECT_EQ(owner->number(), number);
  }
  EXPECT_EQ(Owner::of_number(Owner().number()), std::nullopt);
  EXPECT_EQ(Owner::of_number((uint64_t{1} << 63) - 1), std::nullopt);
}

TEST(Owner, a_principal_is_no_local_user_whatever_its_digest) {
  for (const uint64_t digest : {uint64_t{0}, uint64_t{1000}, ~uint64_t{0}, uint64_t{1} << 63}) {
    const Owner principal = Owner::of_principal(digest);
    EXPECT_TRUE(principal.valid());
    EXPECT_TRUE(principal.is_principal());
    EXPECT_EQ(principal.user(), std::nullopt);
    EXPECT_EQ(Owner::of_number(principal.number()), principal);
  }
  EXPECT_NE(Owner::of_principal(1000), Owner::of_user(1000));
  EXPECT_NE(Owner::of_principal(1000), Owner::of_principal(1001));
  EXPECT_FALSE(Owner::of_user(1000).is_principal());
  EXPECT_FALSE(Owner().is_principal());
}

}  // namespace
}  // namespace djinn
