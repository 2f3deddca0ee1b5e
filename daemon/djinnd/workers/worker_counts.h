// SPDX-License-Identifier: Apache-2.0

// WorkerCounts: what the workers of one domain have counted since djinnd's start, the dead ones
// included. Pure.
//
// invariant: no count ever goes down, whatever a worker says and whenever it dies; slab_bytes is of
// the living worker.
#pragma once

#include "ipc/messages.h"

namespace djinn::daemon {

class WorkerCounts {
 public:
  // The living worker told its counts. Counts that are lower than before are not believed.
  void on_worker_stats(const ipc::WorkerStats& stats);
  // It is gone; the next one counts from zero.
  void worker_gone();
  [[nodiscard]] ipc::WorkerStats total() const;

 private:
  ipc::WorkerStats living_;
  ipc::WorkerStats gone_;  // the sum of the former ones
};

// Adds the counts of `more`, slab_bytes too, and stops at the largest number.
void add_counts(ipc::WorkerStats& sum, const ipc::WorkerStats& more);

}  // namespace djinn::daemon
