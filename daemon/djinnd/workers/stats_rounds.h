// SPDX-License-Identifier: Apache-2.0

// StatsRounds: asks workers for their counts, and tells whoever wanted them when they are there.
//
//   round    one asking of workers that are ready; over when each has answered or died, or after a
//            moment: who has not told by then is known by its last counts
//
// An answer counts for all rounds that are open when it comes.
// invariant: a worker owes one answer at most, however many ask.
#pragma once

#include <functional>
#include <list>
#include <vector>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class StatsRounds {
 public:
  StatsRounds(Loop& loop, Domains& domains);

  // whose: of the workers to ask, those of these users; nobody then waits for another user's. over:
  // called once, at once where there is no worker to ask.
  void ask(const std::function<bool(Owner)>& whose, std::function<void()> over);

  void on_worker_stats(WorkerKey key, const ipc::WorkerStats& stats);
  void worker_died(WorkerKey key);

 private:
  static constexpr uint64_t kTimeoutMs = 250;

  struct Round {
    std::function<void()> over;
    std::vector<WorkerKey> owing;
  };
  [[nodiscard]] bool owes(WorkerKey key) const;
  void answered(WorkerKey key);
  void end_complete();
  void end_all();

  Domains& domains_;
  std::list<Round> rounds_;
  Timer timeout_;
};

}  // namespace djinn::daemon
