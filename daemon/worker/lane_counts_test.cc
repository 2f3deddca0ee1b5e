// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/lane_counts.h"

#include <gtest/gtest.h>

#include <numeric>

namespace djinn::worker {
namespace {

uint64_t times(const ipc::TimeHistogram& histogram) {
  return std::accumulate(histogram.counts.begin(), histogram.counts.end(), uint64_t{0});
}

constexpr auto kRun = static_cast<uint16_t>(ipc::Operation::kRun);
constexpr auto kGenerate = static_cast<uint16_t>(ipc::Operation::kGenerate);

TEST(LaneCounts, a_submissions_wait_ends_as_it_begins_and_its_run_as_it_ends) {
  LaneCounts counts;
  Progression progression;
  progression.could_not_begin_before(100);
  progression.begun_ns = 130;
  progression.could_not_begin_before(140);  // it has begun
  counts.note_end(progression, kRun, false, 200);
  const ipc::WorkerStats stats = counts.read();
  EXPECT_EQ(stats.queue.sum_ns, 30u);
  EXPECT_EQ(stats.run.sum_ns, 70u);
  EXPECT_EQ(stats.submissions[kRun], 1u);
  EXPECT_EQ(progression.ready_ns, 200u) << "the next one waits from then on";
  EXPECT_EQ(progression.begun_ns, 0u);
}

TEST(LaneCounts, what_failed_is_counted_as_that_alone) {
  LaneCounts counts;
  Progression progression{10, 20, 0};
  counts.note_end(progression, kRun, true, 30);
  counts.note_end(progression, UINT16_MAX, true, 40);
  const ipc::WorkerStats stats = counts.read();
  EXPECT_EQ(stats.submissions_failed, 2u);
  EXPECT_EQ(stats.submissions[kRun], 0u);
  EXPECT_EQ(times(stats.run), 0u);
}

TEST(LaneCounts, the_first_token_is_timed_from_the_queue_and_others_from_the_one_before) {
  LaneCounts counts;
  Progression progression{100, 150, 0};
  counts.note_tokens(progression, {2, 1, 12}, 400);
  counts.note_tokens(progression, {2, 2, 12}, 450);
  counts.note_tokens(progression, {}, 500);
  counts.note_end(progression, kGenerate, false, 500);
  const ipc::WorkerStats stats = counts.read();
  EXPECT_EQ(stats.tokens, 4u);
  EXPECT_EQ(stats.prompt_tokens, 12u);
  EXPECT_EQ(stats.first_token.sum_ns, 300u);
  EXPECT_EQ(stats.next_token.sum_ns, 50u);
  EXPECT_EQ(times(stats.next_token), 1u);
}

TEST(LaneCounts, a_token_that_another_worker_told_before_is_timed_from_nowhere) {
  LaneCounts counts;
  Progression progression{100, 150, 0};
  counts.note_tokens(progression, {1, 7, 3}, 400);
  EXPECT_EQ(times(counts.read().next_token), 0u);
  EXPECT_EQ(counts.read().prompt_tokens, 0u);
}

TEST(LaneCounts, a_clock_that_is_behind_gives_no_time_and_not_an_age) {
  LaneCounts counts;
  Progression progression{100, 90, 0};
  counts.note_end(progression, kRun, false, 80);
  EXPECT_EQ(counts.read().queue.sum_ns, 0u);
  EXPECT_EQ(counts.read().run.sum_ns, 0u);
}

}  // namespace
}  // namespace djinn::worker
