// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/heap.h"

#include "daemon/worker/djinnd_for_tests.h"

namespace djinn::worker {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class HeapTest : public DjinndTest {
 protected:
  // What a run is told whose heap is to hold so many bytes.
  ErrorCode allow(uint64_t bytes) { return code_of(heap_.allow(bytes)); }
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
  EXPECT_EQ(allow(kMiB), ErrorCode::kPending);
  EXPECT_EQ(granted(), 4 * kMiB);
  EXPECT_EQ(allow(kMiB), ErrorCode::kOk);
  EXPECT_EQ(allow(4 * kMiB), ErrorCode::kOk);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(HeapTest, a_heap_that_grows_doubles_so_that_few_runs_are_repeated) {
  uint64_t total = 0;
  int questions = 0;
  for (uint64_t bytes = kMiB; bytes <= 256 * kMiB; bytes += kMiB) {
    while (allow(bytes) == ErrorCode::kPending) {
      total += granted();
      ++questions;
    }
  }
  EXPECT_LE(questions, 8);
  EXPECT_LT(total, 512 * kMiB + 1);
}

TEST_F(HeapTest, one_that_may_not_double_is_given_what_it_needs) {
  ASSERT_EQ(allow(8 * kMiB), ErrorCode::kPending);
  ASSERT_EQ(granted(), 8 * kMiB);
  EXPECT_EQ(allow(9 * kMiB), ErrorCode::kPending);
  const auto doubled = heard<ipc::GrantRequest>();
  EXPECT_EQ(doubled.bytes, 8 * kMiB);
  EXPECT_TRUE(doubled.or_less);
  answer(doubled, ErrorCode::kOutOfMemory);
  EXPECT_EQ(allow(9 * kMiB), ErrorCode::kPending);
  const auto needed = heard<ipc::GrantRequest>();
  EXPECT_EQ(needed.bytes, 4 * kMiB);
  EXPECT_FALSE(needed.or_less) << "a refusal of it is told";
  answer(needed);
  EXPECT_EQ(allow(9 * kMiB), ErrorCode::kOk);
}

TEST_F(HeapTest, a_run_that_needs_what_is_refused_is_told_so) {
  EXPECT_EQ(allow(kMiB), ErrorCode::kPending);
  answer(heard<ipc::GrantRequest>(), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(allow(kMiB), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(allow(UINT64_MAX), ErrorCode::kOutOfMemory) << "there cannot be so much";
}

TEST_F(HeapTest, what_is_not_needed_any_more_goes_back) {
  ASSERT_EQ(allow(64 * kMiB), ErrorCode::kPending);
  ASSERT_EQ(granted(), 64 * kMiB);
  ASSERT_EQ(allow(64 * kMiB), ErrorCode::kOk);
  heap_.settle(5 * kMiB);
  EXPECT_EQ(heard<ipc::GrantReturn>().bytes, 56 * kMiB);
  heap_.settle(8 * kMiB);
  EXPECT_TRUE(nothing_is_said()) << "it has no more than that";
  EXPECT_EQ(allow(9 * kMiB), ErrorCode::kPending);
}

}  // namespace
}  // namespace djinn::worker
