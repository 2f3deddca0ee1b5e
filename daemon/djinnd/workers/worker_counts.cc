// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/worker_counts.h"

#include <algorithm>
#include <limits>

#include "kernel/base/checked.h"

namespace djinn::daemon {
namespace {

template <typename Function>
void each_of(ipc::TimeHistogram& a, const ipc::TimeHistogram& b, const Function& f) {
  for (size_t i = 0; i < a.counts.size(); ++i) f(a.counts[i], b.counts[i]);
  f(a.sum_ns, b.sum_ns);
}

constexpr size_t kHistogramWords = ipc::kTimeBuckets + 1;
static_assert(sizeof(ipc::WorkerStats) ==
                  (15 + ipc::kOperations + 4 * kHistogramWords) * sizeof(uint64_t),
              "A count that was added is missing below.");

// Calls f with each count of a and its twin of b.
template <typename Function>
void each_count(ipc::WorkerStats& a, const ipc::WorkerStats& b, const Function& f) {
  f(a.runs, b.runs);
  f(a.planned_runs, b.planned_runs);
  f(a.plan_misses, b.plan_misses);
  f(a.plan_records, b.plan_records);
  f(a.runs_repeated, b.runs_repeated);
  f(a.runs_together, b.runs_together);
  f(a.tokens, b.tokens);
  f(a.prompt_tokens, b.prompt_tokens);
  for (size_t i = 0; i < a.submissions.size(); ++i) f(a.submissions[i], b.submissions[i]);
  f(a.submissions_failed, b.submissions_failed);
  f(a.submissions_refused, b.submissions_refused);
  each_of(a.queue, b.queue, f);
  each_of(a.run, b.run, f);
  each_of(a.first_token, b.first_token, f);
  each_of(a.next_token, b.next_token, f);
  f(a.bytes_in, b.bytes_in);
  f(a.bytes_out, b.bytes_out);
  f(a.turn_ns, b.turn_ns);
  f(a.overruns, b.overruns);
}

uint64_t sum_or_most(uint64_t a, uint64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<uint64_t>::max());
}

}  // namespace

void add_counts(ipc::WorkerStats& sum, const ipc::WorkerStats& more) {
  each_count(sum, more, [](uint64_t& a, uint64_t b) { a = sum_or_most(a, b); });
  sum.slab_bytes = sum_or_most(sum.slab_bytes, more.slab_bytes);
}

void WorkerCounts::on_worker_stats(const ipc::WorkerStats& stats) {
  each_count(living_, stats, [](uint64_t& a, uint64_t b) { a = std::max(a, b); });
  living_.slab_bytes = stats.slab_bytes;
}

void WorkerCounts::worker_gone() {
  living_.slab_bytes = 0;
  add_counts(gone_, living_);
  living_ = {};
}

ipc::WorkerStats WorkerCounts::total() const {
  ipc::WorkerStats sum = gone_;
  add_counts(sum, living_);
  return sum;
}

}  // namespace djinn::daemon
