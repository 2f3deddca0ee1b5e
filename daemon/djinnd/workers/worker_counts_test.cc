// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/worker_counts.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernel/base/random.h"

namespace djinn::daemon {
namespace {

ipc::WorkerStats stats_of(uint64_t runs) {
  ipc::WorkerStats stats;
  stats.slab_bytes = 100;
  stats.runs = runs;
  stats.submissions[1] = runs;
  for (uint64_t i = 0; i < runs; ++i) stats.queue.note(i * 1'000'000);
  return stats;
}

TEST(WorkerCountsTest, what_a_dead_worker_counted_stays_and_its_slab_does_not) {
  WorkerCounts counts;
  counts.on_worker_stats(stats_of(3));
  EXPECT_EQ(counts.total(), stats_of(3));
  counts.worker_gone();
  ipc::WorkerStats expected = stats_of(3);
  expected.slab_bytes = 0;
  EXPECT_EQ(counts.total(), expected);
  counts.on_worker_stats(stats_of(2));
  EXPECT_EQ(counts.total().runs, 5u);
  EXPECT_EQ(counts.total().submissions[1], 5u);
  EXPECT_EQ(counts.total().queue.sum_ns, (0 + 1 + 2 + 0 + 1) * 1'000'000u);
  EXPECT_EQ(counts.total().slab_bytes, 100u);
}

// All counts of a, as a list.
std::vector<uint64_t> list_of(const ipc::WorkerStats& a) {
  std::vector<uint64_t> all{
      a.runs,          a.planned_runs, a.plan_misses,   a.plan_records,       a.runs_repeated,
      a.runs_together, a.tokens,       a.prompt_tokens, a.submissions_failed, a.bytes_in,
      a.bytes_out,     a.turn_ns,      a.overruns,      a.submissions_refused};
  all.insert(all.end(), a.submissions.begin(), a.submissions.end());
  for (const ipc::TimeHistogram* times : {&a.queue, &a.run, &a.first_token, &a.next_token}) {
    all.insert(all.end(), times->counts.begin(), times->counts.end());
    all.push_back(times->sum_ns);
  }
  return all;
}

TEST(WorkerCountsTest, no_count_goes_down_whatever_a_worker_says_and_whenever_it_dies) {
  Random random(5);
  WorkerCounts counts;
  std::vector<uint64_t> before = list_of(counts.total());
  for (int i = 0; i < 2000; ++i) {
    ipc::WorkerStats said;
    // Now and then a number at the end of all numbers.
    const auto any = [&] {
      return random.below(50) == 0 ? std::numeric_limits<uint64_t>::max() : random.below(1000);
    };
    for (uint64_t* count : {&said.runs, &said.tokens, &said.plan_misses, &said.run.sum_ns}) {
      *count = any();
    }
    for (uint64_t& count : said.first_token.counts) count = any();
    random.below(3) == 0 ? counts.worker_gone() : counts.on_worker_stats(said);
    const std::vector<uint64_t> after = list_of(counts.total());
    for (size_t n = 0; n < after.size(); ++n) ASSERT_GE(after[n], before[n]) << n;
    before = after;
  }
}

}  // namespace
}  // namespace djinn::daemon
