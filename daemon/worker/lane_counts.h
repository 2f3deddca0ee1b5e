// SPDX-License-Identifier: Apache-2.0

// LaneCounts: what the lane's thread counts as it goes, for whoever wants to know.
//
// The lane's thread alone writes; any thread reads, at any time, and never waits. Each number is
// right for itself; two read together may be a step apart.
// invariant: counts only rise, but slab_bytes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "ipc/messages.h"
#include "ipc/session_memory.h"
#include "kernel/executor/executor.h"

namespace djinn::worker {

// A word that one thread raises: no locked instruction on the step's way.
class Count {
 public:
  void add(uint64_t n) { value_.store(get() + n, std::memory_order_relaxed); }
  void set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class TimeCounts {
 public:
  void note(uint64_t ns) {
    counts_[ipc::time_bucket(ns)].add(1);
    sum_ns_.add(ns);
  }
  [[nodiscard]] ipc::TimeHistogram read() const;

 private:
  std::array<Count, ipc::kTimeBuckets> counts_;
  Count sum_ns_;
};

// When what happened to the submission that a session has in flight, in the lane's clock.
struct Progression {
  uint64_t ready_ns = 0;  // since when the lane could have begun it, had it had nothing else to do
  uint64_t begun_ns = 0;  // its first step; 0: not begun, or put off for want of memory
  uint64_t token_ns = 0;  // the last token; 0: none yet in this worker

  // Until now there was nothing to begin, or nothing that the lane could have done about it.
  void could_not_begin_before(uint64_t now_ns) {
    if (begun_ns == 0) ready_ns = now_ns;
  }
};

class LaneCounts {
 public:
  // --- the lane's thread
  // A step of the submission ended, at now_ns, with a token for each of so many rows or with none.
  // generated: tokens a row so far.
  struct Tokens {
    uint64_t rows = 0;
    uint64_t generated = 0;
    uint64_t prompt_tokens = 0;  // of all rows; of the first one
  };
  void note_tokens(Progression& progression, const Tokens& tokens, uint64_t now_ns);
  // The submission ends because of its deadline.
  void note_refusal() { submissions_refused_.add(1); }
  // The submission ended. What it leaves in progression is the beginning of the next one's.
  void note_end(Progression& progression, uint16_t operation, bool failed, uint64_t now_ns);
  void note_lane(const exec::LaneStats& stats);
  // A run was computed, and thrown away because memory for it was on its way.
  void note_repetition() { runs_repeated_.add(1); }
  // The lane has slept for its turn among workers; and how often it has not waited on, in all.
  void note_turn(uint64_t slept_ns, uint64_t overruns);
  // What more has crossed in sessions' memory.
  void note_crossing(uint64_t bytes_in, uint64_t bytes_out);

  // --- any thread
  [[nodiscard]] ipc::WorkerStats read() const;

 private:
  Count slab_bytes_;
  Count runs_;
  Count planned_runs_;
  Count plan_misses_;
  Count plan_records_;
  Count runs_repeated_;
  Count runs_together_;
  Count tokens_;
  Count prompt_tokens_;
  std::array<Count, ipc::kOperations> submissions_;
  Count submissions_failed_;
  Count submissions_refused_;
  Count bytes_in_;
  Count bytes_out_;
  Count turn_ns_;
  Count overruns_;
  TimeCounts queue_;
  TimeCounts run_;
  TimeCounts first_token_;
  TimeCounts next_token_;
};

}  // namespace djinn::worker
