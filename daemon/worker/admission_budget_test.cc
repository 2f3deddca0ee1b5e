// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/admission_budget.h"

#include <gtest/gtest.h>

#include "kernel/base/clock_for_tests.h"

namespace djinn::worker {
namespace {

TEST(AdmissionBudget, is_of_the_threads_own_time_and_refuses_what_is_over_it) {
  ClockByHand clock;
  clock.now_ns = 5'000'000'000;
  const AdmissionBudget budget(clock, 2);
  EXPECT_EQ(*budget.used_ns(), 0u);
  clock.now_ns += 2'000'000;
  EXPECT_EQ(*budget.used_ns(), 2'000'000u);
  clock.stand_still(1'000'000'000);  // others had the processor
  EXPECT_TRUE(budget.used_ns());
  clock.now_ns += 1;
  const auto over = budget.used_ns();
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code, ErrorCode::kLimitExceeded);
}

TEST(AdmissionBudget, is_looked_at_for_the_first_node_and_not_for_each) {
  const ClockByHand clock;
  AdmissionBudget budget(clock, 1);
  EXPECT_TRUE(budget.is_due());
  int due = 0;
  for (int node = 0; node < 1000; ++node) due += budget.is_due() ? 1 : 0;
  EXPECT_GT(due, 0);
  EXPECT_LT(due, 500);
}

}  // namespace
}  // namespace djinn::worker
