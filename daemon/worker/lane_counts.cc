// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/lane_counts.h"

#include "kernel/base/assert.h"

namespace djinn::worker {
namespace {

// Another core's clock may be a little behind.
uint64_t between(uint64_t from_ns, uint64_t to_ns) {
  return to_ns > from_ns ? to_ns - from_ns : 0;
}

bool is_run(uint16_t operation) {
  return operation == static_cast<uint16_t>(ipc::Operation::kRun) ||
         operation == static_cast<uint16_t>(ipc::Operation::kRunOnce);
}

}  // namespace

ipc::TimeHistogram TimeCounts::read() const {
  ipc::TimeHistogram times;
  for (size_t i = 0; i < counts_.size(); ++i) times.counts[i] = counts_[i].get();
  times.sum_ns = sum_ns_.get();
  return times;
}

void LaneCounts::note_tokens(Progression& progression, const Tokens& tokens, uint64_t now_ns) {
  if (tokens.rows == 0) return;
  DJINN_ASSERT(tokens.generated > 0);
  tokens_.add(tokens.rows);
  if (tokens.generated == 1) {
    prompt_tokens_.add(tokens.prompt_tokens);
    first_token_.note(between(progression.ready_ns, now_ns));
  } else if (progression.token_ns != 0) {
    next_token_.note(between(progression.token_ns, now_ns));
  }
  progression.token_ns = now_ns;
}

void LaneCounts::note_end(Progression& progression, uint16_t operation, bool failed,
                          uint64_t now_ns) {
  queue_.note(between(progression.ready_ns, progression.begun_ns));
  if (failed) {
    submissions_failed_.add(1);
  } else if (operation < submissions_.size()) {
    submissions_[operation].add(1);
    if (is_run(operation)) run_.note(between(progression.begun_ns, now_ns));
  }
  progression = {now_ns, 0, 0};
}

void LaneCounts::note_lane(const exec::LaneStats& stats) {
  slab_bytes_.set(stats.planned_bytes);
  runs_.set(stats.runs);
  planned_runs_.set(stats.planned_runs);
  plan_misses_.set(stats.plan_misses);
  plan_records_.set(stats.plan_records);
  runs_together_.set(stats.runs_together);
}

void LaneCounts::note_turn(uint64_t slept_ns, uint64_t overruns) {
  turn_ns_.add(slept_ns);
  overruns_.set(overruns);
}

void LaneCounts::note_crossing(uint64_t bytes_in, uint64_t bytes_out) {
  bytes_in_.add(bytes_in);
  bytes_out_.add(bytes_out);
}

ipc::WorkerStats LaneCounts::read() const {
  ipc::WorkerStats stats;
  stats.slab_bytes = slab_bytes_.get();
  stats.runs = runs_.get();
  stats.planned_runs = planned_runs_.get();
  stats.plan_misses = plan_misses_.get();
  stats.plan_records = plan_records_.get();
  stats.runs_repeated = runs_repeated_.get();
  stats.runs_together = runs_together_.get();
  stats.tokens = tokens_.get();
  stats.prompt_tokens = prompt_tokens_.get();
  for (size_t i = 0; i < submissions_.size(); ++i) stats.submissions[i] = submissions_[i].get();
  stats.submissions_failed = submissions_failed_.get();
  stats.submissions_refused = submissions_refused_.get();
  stats.queue = queue_.read();
  stats.run = run_.read();
  stats.first_token = first_token_.read();
  stats.next_token = next_token_.read();
  stats.bytes_in = bytes_in_.get();
  stats.bytes_out = bytes_out_.get();
  stats.turn_ns = turn_ns_.get();
  stats.overruns = overruns_.get();
  return stats;
}

}  // namespace djinn::worker
