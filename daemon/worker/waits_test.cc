// SPDX-License-Identifier: Apache-2.0

// Who waits for what, and what lets them go on.
#include "daemon/worker/waits.h"

#include <gtest/gtest.h>

namespace djinn::worker {
namespace {

constexpr SessionId kOne{1};
constexpr SessionId kOther{2};
constexpr AwaitedGrant kSlab{ipc::GrantKind::kSlab, {}};
constexpr AwaitedGrant kRefsOfOne{ipc::GrantKind::kRefs, kOne};
constexpr AwaitedModel kAwaitedModel{ModelId{3}};

class WaitsTest : public ::testing::Test {
 protected:
  // A step of the session that needs all of that.
  void wait(SessionId session, const std::vector<Awaited>& needs) {
    waits_.begin_step();
    for (const Awaited& what : needs) EXPECT_EQ(waits_.await(what), Pending{});
    waits_.suspend(session);
  }
  void arrive(const Awaited& what) {
    waits_.arrived(what);
    waits_.take_arrivals();
  }

  int wakes_ = 0;
  Waits waits_{[this] { ++wakes_; }};
};

TEST_F(WaitsTest, a_session_goes_on_when_what_it_awaits_has_come_and_for_no_other_news) {
  wait(kOne, {kAwaitedModel});
  arrive(kSlab);
  arrive(AwaitedModel{ModelId{4}});
  arrive(AwaitedSequence{kOne, {3, 1}});
  EXPECT_TRUE(waits_.is_waiting(kOne));
  arrive(kAwaitedModel);
  EXPECT_FALSE(waits_.is_waiting(kOne));
}

TEST_F(WaitsTest, what_another_session_awaits_is_not_its_own) {
  wait(kOne, {kRefsOfOne});
  wait(kOther, {AwaitedGrant{ipc::GrantKind::kRefs, kOther}});
  arrive(kRefsOfOne);
  EXPECT_FALSE(waits_.is_waiting(kOne));
  EXPECT_TRUE(waits_.is_waiting(kOther));
}

TEST_F(WaitsTest, all_who_await_the_lanes_memory_try_again_when_some_comes) {
  wait(kOne, {kSlab});
  wait(kOther, {kSlab});
  arrive(kSlab);
  EXPECT_FALSE(waits_.is_waiting(kOne));
  EXPECT_FALSE(waits_.is_waiting(kOther));
}

TEST_F(WaitsTest, one_of_several_that_has_come_is_enough_to_try_again) {
  wait(kOne, {kSlab, kRefsOfOne});
  arrive(kRefsOfOne);
  EXPECT_FALSE(waits_.is_waiting(kOne));
}

TEST_F(WaitsTest, what_came_while_its_step_still_ran_is_not_missed) {
  waits_.begin_step();
  EXPECT_EQ(waits_.await(kAwaitedModel), Pending{});
  waits_.arrived(kAwaitedModel);
  EXPECT_EQ(wakes_, 1);
  EXPECT_TRUE(waits_.has_arrivals());
  waits_.suspend(kOne);
  waits_.take_arrivals();
  EXPECT_FALSE(waits_.has_arrivals());
  EXPECT_FALSE(waits_.is_waiting(kOne));
}

TEST_F(WaitsTest, what_came_and_was_taken_while_its_step_still_ran_is_not_missed) {
  waits_.begin_step();
  EXPECT_EQ(waits_.await(kAwaitedModel), Pending{});
  arrive(kAwaitedModel);
  waits_.suspend(kOne);
  EXPECT_FALSE(waits_.is_waiting(kOne));
}

TEST_F(WaitsTest, what_came_while_its_step_was_set_aside_is_not_missed) {
  waits_.begin_step();
  EXPECT_EQ(waits_.await(kAwaitedModel), Pending{});
  waits_.set_aside();
  wait(kOther, {kSlab});
  arrive(kAwaitedModel);
  EXPECT_TRUE(waits_.is_waiting(kOther));
  waits_.take_up();
  waits_.suspend(kOne);
  EXPECT_FALSE(waits_.is_waiting(kOne));
}

TEST_F(WaitsTest, what_a_step_before_awaited_is_not_awaited_by_the_next) {
  waits_.begin_step();
  EXPECT_EQ(waits_.await(kSlab), Pending{}) << "and it ended otherwise";
  wait(kOne, {kAwaitedModel});
  arrive(kSlab);
  EXPECT_TRUE(waits_.is_waiting(kOne));
}

}  // namespace
}  // namespace djinn::worker
