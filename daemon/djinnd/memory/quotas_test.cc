// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/quotas.h"

#include <gtest/gtest.h>

namespace djinn::daemon {
namespace {

constexpr Owner kAlice = Owner::of_user(1000);
constexpr Owner kBob = Owner::of_user(1001);
constexpr gid_t kSmall = 50;
constexpr gid_t kLarge = 51;
constexpr uint64_t kTotal = 1000;
constexpr Amount kPins{500};
constexpr SessionId kFirst{1};
constexpr SessionId kSecond{2};

Amount bytes(uint64_t number) {
  return {number, false};
}

TEST(Quotas, nobody_has_one_where_nothing_is_written) {
  Quotas quotas;
  quotas.set({}, kPins);
  quotas.joined(kFirst, kAlice, {kSmall});
  QuotaInForce standard;
  standard.pin_bytes = kPins.number;
  EXPECT_EQ(quotas.of(kAlice, kTotal), standard);
}

TEST(Quotas, a_share_is_of_the_device_in_question) {
  Quotas quotas;
  quotas.set({{false, "alice", kAlice.user(), {Amount{10, true}, {}, {}, {}}}}, {50, true});
  EXPECT_EQ(quotas.of(kAlice, 1000).memory_bytes, 100u);
  EXPECT_EQ(quotas.of(kAlice, 5000).memory_bytes, 500u);
  EXPECT_EQ(quotas.of(kBob, 5000).pin_bytes, 2500u);
}

TEST(Quotas, a_users_own_key_goes_before_their_groups_and_the_largest_of_these_binds) {
  Quotas quotas;
  quotas.set({{false, "alice", kAlice.user(), {{}, {}, 2, 3}},
              {true, "small", kSmall, {bytes(100), bytes(10), 4, 40}},
              {true, "large", kLarge, {Amount{20, true}, {}, 1, 50}}},
             kPins);
  quotas.joined(kFirst, kAlice, {7, kLarge, kSmall});
  EXPECT_EQ(quotas.of(kAlice, kTotal), (QuotaInForce{200, 10, 2, 3, true}));
  quotas.joined(kSecond, kBob, {kSmall});
  EXPECT_EQ(quotas.of(kBob, kTotal), (QuotaInForce{100, 10, 4, 40, true}));
}

TEST(Quotas, groups_are_those_of_all_connections_that_are_open) {
  Quotas quotas;
  quotas.set({{true, "small", kSmall, {bytes(100), {}, {}, {}}},
              {true, "large", kLarge, {bytes(200), {}, {}, {}}}},
             kPins);
  quotas.joined(kFirst, kAlice, {kSmall});
  EXPECT_EQ(quotas.of(kAlice, kTotal).memory_bytes, 100u);
  quotas.joined(kSecond, kAlice, {kLarge});
  EXPECT_EQ(quotas.of(kAlice, kTotal).memory_bytes, 200u);
  quotas.left(kSecond);
  EXPECT_EQ(quotas.of(kAlice, kTotal).memory_bytes, 100u);
}

TEST(Quotas, the_key_that_binds_is_named) {
  Quotas quotas;
  quotas.set({{false, "alice", kAlice.user(), {{}, {}, 2, 3}},
              {true, "small", kSmall, {bytes(100), {}, 4, {}}},
              {true, "large", kLarge, {Amount{20, true}, {}, 1, 50}}},
             kPins);
  quotas.joined(kFirst, kAlice, {kLarge, kSmall});
  EXPECT_EQ(quotas.key_of(kAlice, QuotaOf::kSessions, kTotal), "user.alice.sessions_max");
  EXPECT_EQ(quotas.key_of(kAlice, QuotaOf::kMemory, kTotal), "group.large.memory_quota");
  EXPECT_EQ(quotas.key_of(kAlice, QuotaOf::kPins, kTotal), "memory.pin_quota");
  quotas.joined(kSecond, kBob, {kSmall});
  EXPECT_EQ(quotas.key_of(kBob, QuotaOf::kMemory, kTotal), "group.small.memory_quota");
  EXPECT_EQ(quotas.key_of(kAlice, QuotaOf::kModels, kTotal), "user.alice.models_max");
  EXPECT_EQ(quotas.key_of(kBob, QuotaOf::kModels, kTotal), "models_max");
}

TEST(Quotas, a_section_of_nobody_binds_nobody) {
  Quotas quotas;
  quotas.set({{false, "gone", {}, {bytes(1), {}, {}, {}}}}, kPins);
  quotas.joined(kFirst, Owner::of_user(0), {0});
  EXPECT_FALSE(quotas.of(Owner::of_user(0), kTotal).is_own);
}

TEST(Quotas, another_configuration_binds_those_that_are_there) {
  Quotas quotas;
  quotas.joined(kFirst, kAlice, {kSmall});
  quotas.set({{true, "small", kSmall, {bytes(100), {}, {}, {}}}}, kPins);
  EXPECT_EQ(quotas.of(kAlice, kTotal).memory_bytes, 100u);
  quotas.set({}, kPins);
  EXPECT_FALSE(quotas.of(kAlice, kTotal).is_own);
}

TEST(Quotas, each_principal_has_the_same_and_no_section_binds_one) {
  constexpr Owner kPrincipal = Owner::of_principal(1000);
  Quotas quotas;
  quotas.set({{false, "alice", kAlice.user(), {bytes(1), bytes(1), 1, 1}},
              {true, "small", kSmall, {bytes(1), bytes(1), 1, 1}}},
             kPins);
  quotas.joined(kFirst, kPrincipal, {});
  const QuotaInForce standard = quotas.of(kPrincipal, kTotal);
  EXPECT_EQ(standard.memory_bytes, uint64_t{16} << 30);
  EXPECT_EQ(standard.pin_bytes, 0u);
  EXPECT_EQ(standard.sessions, 16u);
  EXPECT_TRUE(standard.is_own);
  quotas.set_principals({{Amount{10, true}, bytes(7), 2, 3}, 4});
  EXPECT_EQ(quotas.of(kPrincipal, kTotal), (QuotaInForce{100, 7, 2, 3, true}));
  EXPECT_EQ(quotas.connections_of_principal(), 4u);
  EXPECT_EQ(quotas.key_of(kPrincipal, QuotaOf::kMemory, kTotal), "remote.memory_quota");
  EXPECT_EQ(quotas.key_of(kPrincipal, QuotaOf::kSessions, 0), "remote.sessions_max");
  EXPECT_EQ(quotas.key_of(kPrincipal, QuotaOf::kConnections, 0), "remote.connections_max");
  EXPECT_EQ(quotas.of(kAlice, kTotal).sessions, 1u) << "a user's own are as ever";
}

}  // namespace
}  // namespace djinn::daemon
