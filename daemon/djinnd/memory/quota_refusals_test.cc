// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/quota_refusals.h"

#include <gtest/gtest.h>

#include "kernel/base/clock.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr Owner kUser = Owner::of_user(1000);
constexpr Owner kOtherUser = Owner::of_user(1001);

class QuotaRefusalsTest : public ::testing::Test {
 protected:
  void refuse(Owner user, uint64_t session) {
    refusals_.note(user, kHostDevice, SessionId{session},
                   Error{ErrorCode::kQuotaExceeded, "It is too much."});
  }
  [[nodiscard]] uint64_t told() const { return events_.last(); }

  ClockByHand clock_;
  Events events_{clock_};
  QuotaRefusals refusals_{clock_, events_};
};

TEST_F(QuotaRefusalsTest, of_each_who_asks_again_and_again_one_is_told_in_a_while) {
  for (int i = 0; i < 100; ++i) refuse(kUser, 1);
  EXPECT_EQ(told(), 1u);
  refuse(kUser, 2);
  EXPECT_EQ(told(), 2u) << "another session";
  clock_.now_ns += 11 * kNsPerSecond;
  refuse(kUser, 1);
  EXPECT_EQ(told(), 3u);
}

TEST_F(QuotaRefusalsTest, many_sessions_of_a_user_leave_the_log_to_others) {
  for (uint64_t session = 1; session <= 10 * Events::kLimitedAtOnce; ++session) {
    refuse(kUser, session);
  }
  EXPECT_EQ(told(), Events::kLimitedAtOnce);
  refuse(kOtherUser, 1);
  EXPECT_EQ(told(), Events::kLimitedAtOnce + 1);
}

TEST_F(QuotaRefusalsTest, what_no_quota_refuses_is_not_told) {
  refusals_.note(kUser, kHostDevice, SessionId{1}, {});
  refusals_.note(kUser, kHostDevice, SessionId{1},
                 Error{ErrorCode::kOutOfMemory, "There is none."});
  EXPECT_EQ(told(), 0u);
}

}  // namespace
}  // namespace djinn::daemon
