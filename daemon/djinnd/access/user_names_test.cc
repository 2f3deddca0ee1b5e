// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/user_names.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

#include "daemon/djinnd/testing/run_until.h"

namespace djinn::daemon {
namespace {

constexpr Owner kAnn = Owner::of_user(7);
constexpr Owner kBob = Owner::of_user(8);

class UserNamesTest : public ::testing::Test {
 protected:
  // Runs the loop until the users are known, or given up.
  void wait_for(UserNames& names, const std::set<Owner>& users) {
    bool called = false;
    names.when_known(users, [&] { called = true; });
    testing::run_until(loop_, "it is called", [&] { return called; });
  }

  Loop loop_;
  const SystemClock clock_;
  Principals principals_;
};

TEST_F(UserNamesTest, each_user_is_looked_up_once_off_the_loop) {
  const auto lookups = std::make_shared<std::atomic<int>>(0);
  UserNames names(loop_, clock_, principals_,
                  [lookups, loop = std::this_thread::get_id()](uid_t user) {
                    EXPECT_NE(std::this_thread::get_id(), loop);
                    ++*lookups;
                    return "user" + std::to_string(user);
                  });
  EXPECT_EQ(names.of(kAnn), "7");
  wait_for(names, {kAnn, kBob});
  EXPECT_EQ(names.of(kAnn) + names.of(kBob), "user7user8");
  wait_for(names, {kAnn, kBob});
  EXPECT_EQ(*lookups, 2);
}

TEST_F(UserNamesTest, a_database_that_hangs_delays_an_answer_for_a_moment_only) {
  const auto gate = std::make_shared<std::promise<void>>();
  const std::shared_future<void> open = gate->get_future();
  {
    UserNames names(loop_, clock_, principals_, [open](uid_t) {
      open.wait();
      return std::optional<std::string>("late");
    });
    const uint64_t begun_ns = clock_.monotonic_ns();
    wait_for(names, {kAnn});
    EXPECT_GE(clock_.monotonic_ns() - begun_ns, UserNames::kPatienceMs * 1'000'000);
    EXPECT_EQ(names.of(kAnn), "7");
  }
  gate->set_value();
}

TEST_F(UserNamesTest, what_the_database_did_not_answer_is_asked_again) {
  const auto lookups = std::make_shared<std::atomic<int>>(0);
  UserNames names(loop_, clock_, principals_, [lookups](uid_t) -> std::optional<std::string> {
    if (++*lookups == 1) return std::nullopt;
    return "found";
  });
  wait_for(names, {kAnn});
  EXPECT_EQ(names.of(kAnn), "7");
  wait_for(names, {kAnn});
  EXPECT_EQ(names.of(kAnn), "found");
}

TEST_F(UserNamesTest, the_systems_users_are_known_by_name_and_others_by_number) {
  UserNames names(loop_, clock_, principals_);
  const Owner root = Owner::of_user(0);
  const Owner nobody = Owner::of_user(3'999'999'999);
  wait_for(names, {root, nobody});
  EXPECT_EQ(names.of(root), "root");
  EXPECT_EQ(names.of(nobody), "3999999999");
}

TEST_F(UserNamesTest, who_is_no_local_user_is_not_looked_up) {
  const Owner principal = Owner::of_principal(0);
  UserNames names(loop_, clock_, principals_, [](uid_t) -> std::optional<std::string> {
    ADD_FAILURE() << "it is asked";
    return "root";
  });
  wait_for(names, {principal});
  EXPECT_EQ(names.of(principal), "9223372036854775808") << "nobody has said a name";
  const Owner ann = principals_.take_in("spiffe://lab/ann").value();
  wait_for(names, {ann});
  EXPECT_EQ(names.of(ann), "spiffe://lab/ann");
}

}  // namespace
}  // namespace djinn::daemon
