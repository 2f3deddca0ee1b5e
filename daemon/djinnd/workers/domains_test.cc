// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/domains.h"

#include <gtest/gtest.h>

#include "daemon/djinnd/testing/no_workers.h"

namespace djinn::daemon {
namespace {

class DomainsTest : public ::testing::Test {
 protected:
  Status need(Owner owner) {
    const auto needed = workers_.domains.need({owner, kHostDevice}, [this](WorkerKey key) {
      return !idle_.valid() || key.owner != idle_;
    });
    return needed ? Status() : needed.error();
  }
  bool has_worker(Owner owner) {
    const WorkerSupervisor* const worker = workers_.domains.find({owner, kHostDevice});
    return worker != nullptr && !worker->absent();
  }
  void fill_with_principals() {
    for (uint64_t i = 0; i < Domains::kDomainsOfPrincipals; ++i) {
      ASSERT_TRUE(need(Owner::of_principal(i)).ok());
    }
  }

  Loop loop_;
  const SystemClock clock_;
  testing::NoWorkers workers_{loop_, clock_};
  Owner idle_;  // of all others somebody uses the worker
};

TEST_F(DomainsTest, principals_leave_places_to_users_of_the_machine) {
  fill_with_principals();
  const Status refused = need(Owner::of_principal(1000));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
  for (uint32_t uid = 0; uid < Domains::kDomainsMax - Domains::kDomainsOfPrincipals; ++uid) {
    EXPECT_TRUE(need(Owner::of_user(uid)).ok()) << uid;
  }
  EXPECT_FALSE(need(Owner::of_user(1000)).ok());
}

TEST_F(DomainsTest, a_worker_that_nobody_uses_gives_way_and_a_users_to_no_principal) {
  ASSERT_TRUE(need(Owner::of_user(1)).ok());
  fill_with_principals();
  idle_ = Owner::of_user(1);
  EXPECT_FALSE(need(Owner::of_principal(1000)).ok());
  EXPECT_TRUE(has_worker(idle_));
  idle_ = Owner::of_principal(7);
  EXPECT_TRUE(need(Owner::of_principal(1000)).ok());
  EXPECT_FALSE(has_worker(idle_));
}

}  // namespace
}  // namespace djinn::daemon
