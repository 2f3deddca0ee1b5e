// SPDX-License-Identifier: Apache-2.0

// Who waits for memory, and past whom others are served. What each may have: tables_test.cc.
#include "daemon/djinnd/memory/memory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/djinnd/testing/fake_reclaim.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kDevice = 1000;
constexpr Memory::Holder kModel{vmu::HolderKind::kModel, 1};
constexpr Memory::Holder kLargeHolder{vmu::HolderKind::kLoad, 2};
constexpr Memory::Holder kSmallHolder{vmu::HolderKind::kSession, 3};
constexpr Memory::Holder kOtherHolder{vmu::HolderKind::kSession, 4};

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    memory_.set_reclaim(reclaim_);
    reclaim_.has_room = [this](uint64_t bytes) {
      asked_.push_back(bytes);
      return bytes <= coming_;
    };
  }

  struct Answer {
    bool given = false;
    Status status;
  };
  Memory::Granted into(Answer& answer) {
    return [&answer](const Status& status) { answer = {true, status}; };
  }
  // Whether it is granted at once.
  bool has(Memory::Holder holder, uint64_t bytes) {
    Answer answer;
    memory_.request(holder, bytes, into(answer));
    if (!answer.given) memory_.cancel(holder);
    return answer.status.ok() && memory_.held_by(holder) >= bytes;
  }

  const Quotas quotas_;
  Memory memory_{kHostDevice, kDevice, kDevice, quotas_};
  testing::FakeReclaim reclaim_;
  uint64_t coming_ = kDevice;    // what could come free
  std::vector<uint64_t> asked_;  // for how much room
};

TEST_F(MemoryTest, who_fits_is_served_although_a_larger_request_waits) {
  ASSERT_TRUE(has(kModel, 300));
  Answer large;
  memory_.request(kLargeHolder, 800, into(large));
  EXPECT_FALSE(large.given);
  EXPECT_TRUE(has(kSmallHolder, 600));
  EXPECT_FALSE(has(kOtherHolder, 101)) << "no more is free";
  EXPECT_TRUE(has(kOtherHolder, 100));
  memory_.release_all(kModel);
  EXPECT_FALSE(large.given);
  EXPECT_EQ(asked_.back(), 500u) << "what others took is missing, too";
}

TEST_F(MemoryTest, a_device_whose_size_is_told_later_grants_nothing_before_and_then_all_of_it) {
  const DeviceId gpu{DeviceKind::kCuda, 0};
  Memory memory(gpu, 0, kDevice, quotas_);
  Answer before, all, more;
  memory.request(kModel, 1, into(before));
  EXPECT_EQ(before.status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(before.status.error().message.find("device.cuda:0.limit"), std::string::npos);
  memory.set_total(kDevice);
  memory.request(kModel, kDevice, into(all));
  EXPECT_TRUE(all.given && all.status.ok());
  memory.request(kModel, 1, into(more));
  EXPECT_TRUE(more.given && !more.status.ok());
  EXPECT_EQ(memory.free_bytes(), 0u);
  EXPECT_TRUE(memory.check().ok());
}

TEST_F(MemoryTest, what_comes_free_is_kept_for_who_waits_however_often_others_come_and_go) {
  ASSERT_TRUE(has(kModel, 500));
  Answer large;
  memory_.request(kLargeHolder, 800, into(large));
  int turns = 0;
  while (has(kSmallHolder, 100)) {
    memory_.release_all(kSmallHolder);
    ++turns;
  }
  EXPECT_EQ(turns, 5) << "then all that was free is kept";
  EXPECT_FALSE(large.given);
  memory_.release(kModel, 300);
  EXPECT_TRUE(large.given);
  EXPECT_TRUE(large.status.ok());
  EXPECT_EQ(memory_.held_by(kLargeHolder), 800u);
}

TEST_F(MemoryTest, who_waits_in_vain_is_refused_and_what_was_kept_is_the_next_ones) {
  ASSERT_TRUE(has(kModel, 700));
  Answer large;
  Answer next;
  memory_.request(kLargeHolder, 900, into(large));
  ASSERT_TRUE(has(kOtherHolder, 300)) << "all that is free";
  memory_.request(kSmallHolder, 200, into(next));
  memory_.release(kModel, 250);
  EXPECT_FALSE(large.given);
  EXPECT_FALSE(next.given) << "it is kept for who came before";
  coming_ = 0;
  reclaim_.held_up = 450;
  memory_.freed();
  ASSERT_TRUE(large.given);
  EXPECT_EQ(large.status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(large.status.error().message.find("450 B wait for a long step: try later."),
            std::string::npos)
      << large.status.error().message;
  ASSERT_TRUE(next.given);
  EXPECT_TRUE(next.status.ok());
  EXPECT_TRUE(has(kOtherHolder, 50)) << "the rest is anybody's";
}

TEST_F(MemoryTest, room_is_made_for_those_behind_too_and_none_of_them_is_refused_before_the_first) {
  ASSERT_TRUE(has(kModel, 1000));
  coming_ = 500;
  Answer first;
  Answer second;
  Answer third;
  memory_.request(kLargeHolder, 300, into(first));
  memory_.request(kSmallHolder, 200, into(second));
  memory_.request(kOtherHolder, 100, into(third));
  EXPECT_EQ(asked_.back(), 600u);
  EXPECT_FALSE(third.given) << "there may be enough when those before it are served";
  memory_.release(kModel, 500);
  coming_ = 0;
  memory_.freed();
  EXPECT_TRUE(first.given && first.status.ok());
  EXPECT_TRUE(second.given && second.status.ok());
  ASSERT_TRUE(third.given);
  EXPECT_EQ(third.status.error().code, ErrorCode::kOutOfMemory);
}

TEST_F(MemoryTest, what_was_kept_for_who_gives_up_is_kept_for_nobody) {
  ASSERT_TRUE(has(kModel, 900));
  Answer large;
  memory_.request(kLargeHolder, 800, into(large));
  memory_.release(kModel, 400);
  EXPECT_FALSE(has(kSmallHolder, 101));
  memory_.cancel(kLargeHolder);
  EXPECT_EQ(large.status.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(has(kSmallHolder, 500));
  EXPECT_TRUE(memory_.check().ok());
}

TEST_F(MemoryTest, a_refusal_is_told_but_not_to_who_asks_for_less_then) {
  coming_ = 0;
  Answer more, needed;
  memory_.request(Memory::of_heap(WorkerId{1}), kDevice + 1, into(more), vmu::Amount::kMore);
  EXPECT_EQ(more.status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(reclaim_.refusals, 0u);
  memory_.request(Memory::of_heap(WorkerId{1}), kDevice + 1, into(needed));
  EXPECT_EQ(needed.status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(reclaim_.refusals, 1u);
}

TEST_F(MemoryTest, a_lane_that_is_refused_is_told_what_the_memory_was_for) {
  coming_ = 0;
  ASSERT_TRUE(has(kModel, kDevice));
  const auto refused = [&](Memory::Holder holder) {
    Answer answer;
    memory_.request(holder, 100, into(answer));
    return answer.status.error().message;
  };
  EXPECT_EQ(refused(kLargeHolder).find("intermediate"), std::string::npos);
  for (const Memory::Holder lane : {Memory::of_lane(WorkerId{1}), Memory::of_heap(WorkerId{1})}) {
    EXPECT_TRUE(refused(lane).starts_with("100 B more are needed for intermediate results, and "));
  }
}

TEST_F(MemoryTest, a_load_is_told_what_cannot_give_way_where_that_would_help) {
  coming_ = 0;
  ASSERT_TRUE(has(kModel, kDevice));
  const auto refused = [&](uint64_t bytes) {
    Answer answer;
    memory_.request(kLargeHolder, bytes, into(answer));
    return answer.status.error().message;
  };
  const std::string_view stay = "Models that are in use, or loaded just now, cannot give way.";
  EXPECT_NE(refused(100).find(stay), std::string::npos);
  EXPECT_EQ(refused(kDevice + 1).find(stay), std::string::npos);
}

TEST_F(MemoryTest, a_quota_refuses_also_who_would_have_to_wait) {
  Memory memory(kHostDevice, kDevice, 100, quotas_);
  memory.set_reclaim(reclaim_);
  Answer all;
  Answer small;
  memory.request(kModel, kDevice, into(all));
  memory.request(kSmallHolder, 101, into(small));
  ASSERT_TRUE(small.given);
  EXPECT_EQ(small.status.error().code, ErrorCode::kQuotaExceeded);
  EXPECT_TRUE(asked_.empty()) << "nothing gives way for it";
}

TEST_F(MemoryTest, who_waits_for_their_users_quota_is_refused_when_another_session_has_filled_it) {
  constexpr Owner kUser = Owner::of_user(1);
  Quotas quotas;
  quotas.set({{false, "ann", 1, {Amount{100, false}, {}, {}, {}}}}, {kDevice});
  Memory memory(kHostDevice, kDevice, kDevice, quotas);
  memory.set_reclaim(reclaim_);
  reclaim_.leaving_of = [](Owner) { return 30; };
  constexpr Memory::Holder kThird{vmu::HolderKind::kSession, 5};
  for (const auto& holder : {kSmallHolder, kOtherHolder, kThird}) memory.charge(holder, kUser);
  Answer first;
  Answer waits;
  Answer fills;
  memory.request(kSmallHolder, 60, into(first));
  memory.request(kOtherHolder, 50, into(waits));
  EXPECT_FALSE(waits.given) << "it fits when what leaves is gone";
  memory.request(kThird, 40, into(fills));
  EXPECT_TRUE(fills.given && fills.status.ok());
  ASSERT_TRUE(waits.given);
  EXPECT_EQ(waits.status.error().code, ErrorCode::kQuotaExceeded);
  EXPECT_TRUE(memory.check().ok());
}

TEST_F(MemoryTest, who_waits_for_a_quota_is_answered_when_it_is_another_and_all_are_tried_again) {
  constexpr Owner kUser = Owner::of_user(1);
  for (const uint64_t changed : {uint64_t{120}, uint64_t{70}}) {
    Quotas quotas;
    const auto set = [&](uint64_t bytes) {
      quotas.set({{false, "ann", 1, {Amount{bytes, false}, {}, {}, {}}}}, {kDevice});
    };
    set(100);
    Memory memory(kHostDevice, kDevice, kDevice, quotas);
    memory.set_reclaim(reclaim_);
    reclaim_.leaving_of = [](Owner) { return 30; };
    for (const auto& holder : {kSmallHolder, kOtherHolder}) memory.charge(holder, kUser);
    Answer first;
    Answer waits;
    memory.request(kSmallHolder, 60, into(first));
    memory.request(kOtherHolder, 50, into(waits));
    ASSERT_FALSE(waits.given) << "it fits when what leaves is gone";
    set(changed);
    memory.freed();
    ASSERT_TRUE(waits.given);
    EXPECT_EQ(waits.status.ok(), changed == 120);
    EXPECT_EQ(memory.held_by(kOtherHolder), changed == 120 ? 50u : 0u);
    EXPECT_EQ(memory.waiting(), 0u);
    EXPECT_TRUE(memory.check().ok());
  }
}

TEST_F(MemoryTest, who_meets_a_quota_waits_for_what_the_users_sessions_have_and_do_not_use) {
  memory_.set_session_quota(500);
  memory_.charge(kSmallHolder, Owner::of_user(1));
  ASSERT_TRUE(has(kSmallHolder, 400));
  uint64_t idle = 300;
  uint64_t coming = 0;
  reclaim_.take_back = [&](Owner user) {
    EXPECT_EQ(user, Owner::of_user(1));
    coming = idle;
  };
  reclaim_.leaving_of_session = [&](Memory::Holder session) {
    return session == kSmallHolder ? coming : 0;
  };
  Answer more;
  memory_.request(kSmallHolder, 200, into(more));
  EXPECT_FALSE(more.given);
  EXPECT_TRUE(has(kOtherHolder, 100)) << "and keeps nobody from what is free";
  idle = coming = 0;
  memory_.release(kSmallHolder, 300);
  EXPECT_TRUE(more.given);
  EXPECT_TRUE(more.status.ok());

  idle = 300;
  Answer too_much;
  memory_.request(kSmallHolder, 400, into(too_much));
  EXPECT_FALSE(too_much.given);
  idle = coming = 0;  // it was less than it seemed
  memory_.freed();
  EXPECT_EQ(too_much.status.error().code, ErrorCode::kQuotaExceeded);
}

}  // namespace
}  // namespace djinn::daemon
