// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/grants.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "kernel/base/random.h"

namespace djinn::vmu {
namespace {

constexpr PrincipalId kAlice{1}, kBob{2};
constexpr Holder kSession{HolderKind::kSession, 1}, kOther{HolderKind::kSession, 2};
constexpr Holder kLoad{HolderKind::kLoad, 1}, kModel{HolderKind::kModel, 1};

ErrorCode code_of(const Status& status) {
  return status ? ErrorCode::kOk : status.error().code;
}

GrantLedger ledger(uint64_t total = 1000, uint64_t quota = 600) {
  return GrantLedger(total, quota);
}

TEST(grants, a_grant_counts_until_it_is_acknowledged) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kSession, 400));
  EXPECT_EQ(grants.free_bytes(), 600u);
  ASSERT_TRUE(grants.acknowledge(kSession, 150));
  EXPECT_EQ(grants.free_bytes(), 750u);
  ASSERT_TRUE(grants.acknowledge(kSession, 250));
  EXPECT_EQ(grants.free_bytes(), 1000u);
}

TEST(grants, the_dead_hold_nothing) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kSession, 400));
  EXPECT_EQ(grants.holder_died(kSession), 400u);
  EXPECT_EQ(grants.holder_died(kSession), 0u);
  EXPECT_EQ(grants.free_bytes(), 1000u);
}

TEST(grants, over_the_quota_is_that_principals_error_alone) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kSession, 500));
  EXPECT_EQ(code_of(grants.grant(kAlice, kOther, 101)), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(grants.held_by(kOther), 0u);
  EXPECT_TRUE(grants.grant(kBob, kOther, 101));
  EXPECT_TRUE(grants.grant(kAlice, kSession, 100));
}

TEST(grants, more_than_the_device_has_is_out_of_memory_with_numbers) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kSession, 600));
  const auto refused = grants.grant(kBob, kOther, 401);
  ASSERT_EQ(code_of(refused), ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused.error().message, "needs 401 B; 400 B of the device's 1000 B are free");
  EXPECT_TRUE(grants.grant(kBob, kOther, 400));
  EXPECT_EQ(grants.free_bytes(), 0u);
}

TEST(grants, enormous_requests_do_not_wrap_around) {
  GrantLedger grants(UINT64_MAX, kNoQuota);
  ASSERT_TRUE(grants.grant(kAlice, kSession, UINT64_MAX - 1));
  EXPECT_EQ(code_of(grants.grant(kAlice, kSession, 2)), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(code_of(grants.grant(kBob, kOther, UINT64_MAX)), ErrorCode::kOutOfMemory);
}

TEST(grants, a_lowered_quota_takes_nothing_away_and_gives_nothing_more) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kSession, 500));
  grants.set_quota(kAlice, 100);
  EXPECT_EQ(grants.held_by(kAlice), 500u);
  EXPECT_EQ(code_of(grants.grant(kAlice, kSession, 1)), ErrorCode::kQuotaExceeded);
  ASSERT_TRUE(grants.acknowledge(kSession, 401));
  EXPECT_TRUE(grants.grant(kAlice, kSession, 1));
}

TEST(grants, another_default_holds_for_all_without_a_quota_of_their_own) {
  GrantLedger grants = ledger();
  grants.set_quota(kBob, 300);
  ASSERT_TRUE(grants.grant(kAlice, kSession, 400));
  grants.set_default_quota(200);
  EXPECT_EQ(code_of(grants.grant(kAlice, kSession, 1)), ErrorCode::kQuotaExceeded);
  EXPECT_TRUE(grants.grant(kBob, kOther, 300));
  grants.set_default_quota(500);
  EXPECT_TRUE(grants.grant(kAlice, kSession, 100));
}

TEST(grants, what_lies_aside_counts_against_the_quota_alone) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kSession, 500));
  ASSERT_TRUE(grants.acknowledge(kSession, 300));
  grants.set_aside(kAlice, 300);
  EXPECT_EQ(grants.free_bytes(), 800u);
  EXPECT_EQ(code_of(grants.grant(kAlice, kSession, 101)), ErrorCode::kQuotaExceeded);
  EXPECT_TRUE(grants.grant(kAlice, kSession, 100));
  EXPECT_TRUE(grants.grant(kBob, kOther, 600)) << "nobody else's quota";
}

TEST(grants, no_quota_refuses_a_return) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kSession, 300));
  grants.set_aside(kAlice, 300);
  grants.set_default_quota(100);
  EXPECT_TRUE(grants.grant_return(kAlice, kSession, 200));
  EXPECT_EQ(grants.aside_of(kAlice), 100u);
  EXPECT_EQ(code_of(grants.grant_return(kAlice, kSession, 101)), ErrorCode::kQuotaExceeded)
      << "one byte of it is new";
  EXPECT_EQ(grants.aside_of(kAlice), 100u) << "refused, so nothing has changed";
  EXPECT_TRUE(grants.grant_return(kAlice, kSession, 100));
  EXPECT_EQ(grants.aside_of(kAlice), 0u);
  EXPECT_EQ(grants.held_by(kSession), 600u);
}

TEST(grants, nobody_gives_back_more_than_it_holds) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kSession, 10));
  EXPECT_EQ(code_of(grants.acknowledge(kSession, 11)), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of(grants.acknowledge(kOther, 1)), ErrorCode::kNotFound);
  EXPECT_EQ(grants.granted_bytes(), 10u);
}

TEST(grants, a_load_becomes_a_model_without_being_paid_twice) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kLoad, 600));
  ASSERT_TRUE(grants.hand_over(kLoad, kModel));
  EXPECT_EQ(grants.held_by(kLoad), 0u);
  EXPECT_EQ(grants.held_by(kModel), 600u);
  EXPECT_EQ(grants.held_by(kAlice), 600u);
  EXPECT_EQ(code_of(grants.hand_over(kLoad, kModel)), ErrorCode::kNotFound);
}

TEST(grants, a_hand_over_does_not_mix_holders) {
  GrantLedger grants = ledger();
  ASSERT_TRUE(grants.grant(kAlice, kLoad, 10));
  ASSERT_TRUE(grants.grant(kAlice, kModel, 20));
  EXPECT_EQ(code_of(grants.hand_over(kLoad, kModel)), ErrorCode::kAlreadyExists);
}

TEST(grants, a_grant_of_nothing_is_refused) {
  GrantLedger grants = ledger();
  EXPECT_EQ(code_of(grants.grant(kAlice, kSession, 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(grants.granted_bytes(), 0u);
}

// The plainest ledger that can be: a map of what each holder has.
struct PlainLedger {
  std::map<Holder, std::pair<uint64_t, uint64_t>> held;  // principal, bytes
  uint64_t of_principal(uint64_t principal) const {
    uint64_t sum = 0;
    for (const auto& [holder, entry] : held) sum += entry.first == principal ? entry.second : 0;
    return sum;
  }
};

void expect_equal(const GrantLedger& grants, const PlainLedger& plain, uint64_t seed) {
  uint64_t sum = 0;
  for (const auto& [holder, entry] : plain.held) {
    ASSERT_EQ(grants.held_by(holder), entry.second) << seed;
    sum += entry.second;
  }
  ASSERT_EQ(grants.granted_bytes(), sum) << seed;
  ASSERT_EQ(grants.granted_bytes() + grants.free_bytes(), grants.total_bytes()) << seed;
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_EQ(grants.held_by(PrincipalId{id}), plain.of_principal(id)) << seed;
    ASSERT_LE(grants.held_by(PrincipalId{id}), 600u) << seed;
  }
}

TEST(grants, random_sequences_agree_with_a_plain_map) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    GrantLedger grants = ledger();
    PlainLedger plain;
    for (int step = 0; step < 500; ++step) {
      const uint64_t id = 1 + random.below(9), bytes = 1 + random.below(200);
      const uint64_t principal = 1 + id % 3;
      const Holder holder{static_cast<HolderKind>(id % 4), id};
      auto& [payer, held] = plain.held[holder];
      payer = principal;
      switch (random.below(4)) {
        case 0:
        case 1:
          if (grants.grant(PrincipalId{principal}, holder, bytes)) held += bytes;
          break;
        case 2:
          if (grants.acknowledge(holder, bytes)) held -= bytes;
          break;
        case 3:
          if (random.below(4) == 0) {
            ASSERT_EQ(grants.holder_died(holder), std::exchange(held, 0));
          }
          break;
      }
      ASSERT_NO_FATAL_FAILURE(expect_equal(grants, plain, seed));
    }
    for (const auto& [holder, entry] : plain.held) grants.holder_died(holder);
    EXPECT_EQ(grants.free_bytes(), grants.total_bytes());
  }
}

}  // namespace
}  // namespace djinn::vmu
