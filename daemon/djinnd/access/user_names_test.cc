// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/user_names.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

#include "daemon/djinnd/testing/run_until.h"

namespace djinn::daemon {
namespace {

class UserNamesTest : public ::testing::Test {
 protected:
  // Runs the loop until the users are known, or given up.
  void wait_for(UserNames& names, const std::set<uid_t>& users) {
    bool called = false;
    names.when_known(users, [&] { called = true; });
    testing::run_until(loop_, "it is called", [&] { return called; });
  }

  Loop loop_;
  const SystemClock clock_;
};

TEST_F(UserNamesTest, each_user_is_looked_up_once_off_the_loop) {
  const auto lookups = std::make_shared<std::atomic<int>>(0);
  UserNames names(loop_, clock_, [lookups, loop = std::this_thread::get_id()](uid_t user) {
    EXPECT_NE(std::this_thread::get_id(), loop);
    ++*lookups;
    return "user" + std::to_string(user);
  });
  EXPECT_EQ(names.of(7), "7");
  wait_for(names, {7, 8});
  EXPECT_EQ(names.of(7) + names.of(8), "user7user8");
  wait_for(names, {7, 8});
  EXPECT_EQ(*lookups, 2);
}

TEST_F(UserNamesTest, a_database_that_hangs_delays_an_answer_for_a_moment_only) {
  const auto gate = std::make_shared<std::promise<void>>();
  const std::shared_future<void> open = gate->get_future();
  {
    UserNames names(loop_, clock_, [open](uid_t) {
      open.wait();
      return std::optional<std::string>("late");
    });
    const uint64_t begun_ns = clock_.monotonic_ns();
    wait_for(names, {7});
    EXPECT_GE(clock_.monotonic_ns() - begun_ns, UserNames::kPatienceMs * 1'000'000);
    EXPECT_EQ(names.of(7), "7");
  }
  gate->set_value();
}

TEST_F(UserNamesTest, what_the_database_did_not_answer_is_asked_again) {
  const auto lookups = std::make_shared<std::atomic<int>>(0);
  UserNames names(loop_, clock_, [lookups](uid_t) -> std::optional<std::string> {
    if (++*lookups == 1) return std::nullopt;
    return "found";
  });
  wait_for(names, {7});
  EXPECT_EQ(names.of(7), "7");
  wait_for(names, {7});
  EXPECT_EQ(names.of(7), "found");
}

TEST_F(UserNamesTest, the_systems_users_are_known_by_name_and_others_by_number) {
  UserNames names(loop_, clock_);
  wait_for(names, {0, 3'999'999'999});
  EXPECT_EQ(names.of(0), "root");
  EXPECT_EQ(names.of(3'999'999'999), "3999999999");
}

}  // namespace
}  // namespace djinn::daemon
