// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/heap.h"

#include "daemon/worker/djinnd_for_tests.h"

namespace djinn::worker {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class HeapTest : public DjinndTest {
 protected:
  // What a run is told whose heap is to hold so many bytes.
  std::optional<ErrorCode> allow(uint64_t bytes) { return code_of(heap_.allow(bytes)); }
  bool begins(uint64_t bytes) { return !heap_.prepare(bytes); }
  // Of the next request, which is granted.
  uint64_t granted() {
    const auto request = heard<ipc::GrantRequest>();
    EXPECT_EQ(request.kind, ipc::GrantKind::kHeap);
    answer(request);
    return request.bytes;
  }

  GrantedHeap heap_{grants_};
};

TEST_F(HeapTest, what_was_granted_is_not_asked_for_again) {
  EXPECT_EQ(allow(kMiB), kPending);
  EXPECT_EQ(granted(), 4 * kMiB);
  EXPECT_EQ(allow(kMiB), ErrorCode::kOk);
  EXPECT_EQ(allow(4 * kMiB), ErrorCode::kOk);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(HeapTest, a_heap_that_grows_doubles_so_that_few_runs_are_repeated) {
  uint64_t total = 0;
  int questions = 0;
  for (uint64_t bytes = kMiB; bytes <= 256 * kMiB; bytes += kMiB) {
    while (allow(bytes) == kPending) {
      total += granted();
      ++questions;
    }
  }
  EXPECT_LE(questions, 8);
  EXPECT_LT(total, 512 * kMiB + 1);
}

TEST_F(HeapTest, one_that_may_not_double_is_given_what_it_needs) {
  ASSERT_EQ(allow(8 * kMiB), kPending);
  ASSERT_EQ(granted(), 8 * kMiB);
  EXPECT_EQ(allow(9 * kMiB), kPending);
  const auto doubled = heard<ipc::GrantRequest>();
  EXPECT_EQ(doubled.bytes, 8 * kMiB);
  EXPECT_TRUE(doubled.or_less);
  answer(doubled, ErrorCode::kOutOfMemory);
  EXPECT_EQ(allow(9 * kMiB), kPending);
  const auto needed = heard<ipc::GrantRequest>();
  EXPECT_EQ(needed.bytes, 4 * kMiB);
  EXPECT_FALSE(needed.or_less) << "a refusal of it is told";
  answer(needed);
  EXPECT_EQ(allow(9 * kMiB), ErrorCode::kOk);
}

TEST_F(HeapTest, a_run_that_needs_what_is_refused_is_told_so) {
  EXPECT_EQ(allow(kMiB), kPending);
  answer(heard<ipc::GrantRequest>(), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(allow(kMiB), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(allow(UINT64_MAX), ErrorCode::kOutOfMemory) << "there cannot be so much";
}

TEST_F(HeapTest, what_a_run_took_is_kept_for_the_next) {
  ASSERT_EQ(allow(64 * kMiB), kPending);
  ASSERT_EQ(granted(), 64 * kMiB);
  ASSERT_EQ(allow(64 * kMiB), ErrorCode::kOk);
  heap_.settle(0);
  EXPECT_TRUE(begins(64 * kMiB));
  EXPECT_EQ(allow(64 * kMiB), ErrorCode::kOk);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(HeapTest, a_first_run_is_granted_one_step_before_it_begins) {
  EXPECT_FALSE(begins(0));
  EXPECT_EQ(granted(), 4 * kMiB);
  EXPECT_TRUE(begins(0));
  EXPECT_EQ(allow(4 * kMiB), ErrorCode::kOk);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(HeapTest, a_run_whose_need_is_known_is_granted_it_before_it_begins) {
  EXPECT_FALSE(begins(9 * kMiB));
  EXPECT_EQ(granted(), 12 * kMiB);
  EXPECT_TRUE(begins(9 * kMiB));
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(HeapTest, who_is_refused_beforehand_begins_without_and_asks_again_only_when_it_must) {
  EXPECT_FALSE(begins(9 * kMiB));
  const auto ahead = heard<ipc::GrantRequest>();
  EXPECT_TRUE(ahead.or_less) << "nobody hears of its refusal";
  answer(ahead, ErrorCode::kOutOfMemory);
  EXPECT_TRUE(begins(9 * kMiB));
  EXPECT_TRUE(begins(9 * kMiB));
  EXPECT_TRUE(nothing_is_said());
  EXPECT_EQ(allow(9 * kMiB), kPending);
  const auto needed = heard<ipc::GrantRequest>();
  EXPECT_EQ(needed.bytes, 12 * kMiB);
  EXPECT_FALSE(needed.or_less);
  answer(needed);
  EXPECT_EQ(allow(9 * kMiB), ErrorCode::kOk);
  heap_.trim(0);
  EXPECT_EQ(heard<ipc::GrantReturn>().bytes, 12 * kMiB);
  EXPECT_FALSE(begins(9 * kMiB)) << "there may be room by now";
}

TEST_F(HeapTest, what_a_trimmed_lane_does_not_need_goes_back) {
  ASSERT_EQ(allow(64 * kMiB), kPending);
  ASSERT_EQ(granted(), 64 * kMiB);
  ASSERT_EQ(allow(64 * kMiB), ErrorCode::kOk);
  heap_.trim(5 * kMiB);
  EXPECT_EQ(heard<ipc::GrantReturn>().bytes, 56 * kMiB);
  heap_.trim(8 * kMiB);
  EXPECT_TRUE(nothing_is_said()) << "it has no more than that";
  EXPECT_EQ(allow(9 * kMiB), kPending);
}

}  // namespace
}  // namespace djinn::worker
