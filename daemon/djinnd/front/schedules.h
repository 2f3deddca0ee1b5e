// SPDX-License-Identifier: Apache-2.0

// Schedules: asks a worker what its lane has decided lately, for clients who want to see it.
//
// invariant: a worker owes one answer at most, however many ask; an answer is for all who asked.
#pragma once

#include <map>
#include <vector>

#include "daemon/djinnd/front/reports.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "ipc/messages.h"

namespace djinn::daemon {

// Loop's thread.
class Schedules {
 public:
  Schedules(Domains& domains, Sessions& sessions, Reports& reports)
      : domains_(domains), sessions_(sessions), reports_(reports) {}

  void show(const Waiter& waiter, const Caller& caller, const ipc::GetSchedule& request);

  void on_schedule(WorkerKey key, const ipc::LaneSchedule& schedule);
  // Who waits for its answer gets none of its decisions: nobody knows them any more.
  void worker_died(WorkerKey key);

 private:
  struct Asked {
    Waiter waiter;
    uint32_t total = 0;
  };
  [[nodiscard]] std::vector<WorkerKey> seen_by(const Caller& caller) const;
  void answer(const Asked& asked, WorkerKey key, const ipc::LaneSchedule& schedule);

  Domains& domains_;
  Sessions& sessions_;
  Reports& reports_;
  std::map<WorkerKey, std::vector<Asked>> asked_;  // of those that owe an answer
};

}  // namespace djinn::daemon
