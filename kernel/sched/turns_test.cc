// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/turns.h"

#include <gtest/gtest.h>

namespace djinn::sched {
namespace {

constexpr uint64_t kAtNs = kNsPerSecond;
constexpr uint64_t kKey = 7;

class TurnsTest : public testing::Test {
 protected:
  void add(uint64_t id, ServiceClass service, uint64_t batch_key = kKey, uint64_t units = 1) {
    queue_.add(SessionId{id}, service);
    queue_.enqueue({SessionId{id}, Arrival::kWoke, units * kUnitNs, batch_key, units > 1}, kAtNs);
  }
  // Whose step is next, with those that share it.
  std::vector<SessionId> next_unit(uint64_t room = UINT64_MAX) {
    const auto turn = next_turn(queue_, kAtNs);
    EXPECT_TRUE(turn && turn->kind == TurnKind::kStep);
    return unit_of(queue_, turn->session, kKey, kAtNs, [&](SessionId) { return --room > 0; });
  }

  Queue queue_{SchedulePolicy::kFair};
};

TEST_F(TurnsTest, nobody_is_next_where_nobody_is_ready) {
  EXPECT_FALSE(is_wait_next(queue_, kAtNs));
  EXPECT_FALSE(next_turn(queue_, kAtNs));
}

TEST_F(TurnsTest, who_shares_a_step_is_picked_with_it_as_far_as_there_is_room) {
  for (const uint64_t id : {1, 2, 3, 4}) add(id, ServiceClass::kNormal);
  EXPECT_EQ(next_unit(3).size(), 3u);
  EXPECT_EQ(next_unit(3).size(), 1u) << "the last one";
  EXPECT_FALSE(next_turn(queue_, kAtNs));
}

TEST_F(TurnsTest, of_the_class_idle_nobody_joins_another_class_and_others_would_join_it) {
  add(1, ServiceClass::kIdle);
  add(2, ServiceClass::kIdle);
  add(3, ServiceClass::kBatch);
  EXPECT_EQ(next_unit(), std::vector{SessionId{3}});
  EXPECT_EQ(next_unit().size(), 2u);
}

TEST_F(TurnsTest, a_slice_goes_on_alone_gives_way_to_who_is_ready_and_is_a_turn_again) {
  add(1, ServiceClass::kNormal, 0, 10);
  ASSERT_EQ(next_turn(queue_, kAtNs)->session, SessionId{1});
  charge_slice(queue_, SessionId{1}, kUnitNs);
  EXPECT_EQ(after_slice(queue_), AfterSlice::kGoesOn);
  add(2, ServiceClass::kNormal, 0);
  charge_slice(queue_, SessionId{1}, kUnitNs);
  EXPECT_EQ(after_slice(queue_), AfterSlice::kGivesWay);
  queue_.end_slice(SessionId{1});
  const auto other = next_turn(queue_, kAtNs);
  ASSERT_TRUE(other && other->kind == TurnKind::kStep);
  EXPECT_EQ(other->session, SessionId{2});
  queue_.charge(SessionId{2}, kUnitNs);
  const auto again = next_turn(queue_, kAtNs);
  ASSERT_TRUE(again && again->kind == TurnKind::kSlice);
  EXPECT_EQ(again->session, SessionId{1});
}

TEST_F(TurnsTest, an_idle_run_is_given_up_for_a_long_one_of_another_class_paused_or_not) {
  add(1, ServiceClass::kIdle, 0, 10);
  ASSERT_EQ(next_turn(queue_, kAtNs)->session, SessionId{1});
  charge_slice(queue_, SessionId{1}, kUnitNs);
  add(2, ServiceClass::kBatch, 0, 10);
  EXPECT_EQ(after_slice(queue_), AfterSlice::kIsGivenUp);
  queue_.end_slice(SessionId{1});
  EXPECT_FALSE(is_wait_next(queue_, kAtNs));
  const auto turn = next_turn(queue_, kAtNs);
  ASSERT_TRUE(turn && turn->kind == TurnKind::kGiveUp);
  EXPECT_EQ(turn->session, SessionId{1});
  queue_.charge(SessionId{1}, 0);
  EXPECT_EQ(next_turn(queue_, kAtNs)->session, SessionId{2});
}

}  // namespace
}  // namespace djinn::sched
