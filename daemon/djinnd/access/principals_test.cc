// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/principals.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace djinn::daemon {
namespace {

constexpr std::string_view kAnnsName = "spiffe://lab/ann";
constexpr std::string_view kBensName = "spiffe://lab/ben";

TEST(Principals, each_name_has_an_owner_which_is_no_users) {
  Principals principals;
  const Owner ann = principals.take_in(kAnnsName).value();
  const Owner ben = principals.take_in(kBensName).value();
  EXPECT_NE(ann, ben);
  EXPECT_TRUE(ann.is_principal() && ben.is_principal());
  EXPECT_EQ(principals.take_in(kAnnsName).value(), ann);
  EXPECT_EQ(principals.name_of(ann), kAnnsName);
  EXPECT_EQ(principals.name_of(Owner::of_user(1000)), "");
}

// What models that outlive a restart say of their owners is said in numbers.
TEST(Principals, a_number_is_the_digests_of_its_name_and_the_same_for_ever) {
  // printf spiffe://lab/ann | sha256sum
  EXPECT_EQ(Principals().take_in(kAnnsName).value().number(), 0xd79fcf7b29700b60);
}

TEST(Principals, of_two_names_with_one_number_the_second_is_refused) {
  Principals principals([](std::string_view) { return Result<uint64_t>(7); });
  const Owner ann = principals.take_in(kAnnsName).value();
  const auto refused = principals.take_in(kBensName);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(principals.name_of(ann), kAnnsName);
  EXPECT_EQ(principals.take_in(kAnnsName).value(), ann);
}

TEST(Principals, what_is_no_name_of_a_client_is_refused) {
  Principals principals;
  for (const char* const name : {"", "ann", "1000", "root", "spiffe://lab", "spiffe://lab/../ann",
                                 "spiffe://lab/a\n", "https://lab/ann"}) {
    const auto refused = principals.take_in(name);
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(principals.take_in("spiffe://lab/djinn-gate/box").error().code,
            ErrorCode::kPermissionDenied);
}

TEST(Principals, who_has_something_here_is_not_forgotten_for_those_who_come) {
  Principals principals;
  const Owner ann = principals.take_in(kAnnsName).value();
  principals.on_full([&] { return std::set{ann}; });
  for (size_t i = 0; i < 2 * Principals::kKnownMax; ++i) {
    ASSERT_TRUE(principals.take_in(fmt::format("spiffe://lab/job/{}", i)).ok());
  }
  EXPECT_EQ(principals.name_of(ann), kAnnsName);
}

TEST(Principals, where_all_have_something_here_nobody_else_is_let_in) {
  Principals principals;
  std::set<Owner> here;
  principals.on_full([&] { return here; });
  for (size_t i = 0; i < Principals::kKnownMax; ++i) {
    here.insert(principals.take_in(fmt::format("spiffe://lab/job/{}", i)).value());
  }
  EXPECT_EQ(principals.take_in(kAnnsName).error().code, ErrorCode::kLimitExceeded);
  EXPECT_TRUE(principals.take_in("spiffe://lab/job/0").ok());
}

}  // namespace
}  // namespace djinn::daemon
