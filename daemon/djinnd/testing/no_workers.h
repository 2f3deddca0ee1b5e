// SPDX-License-Identifier: Apache-2.0

// NoWorkers: domains whose workers never come, and the parts that they need. What is sent to a
// worker is lost.
#pragma once

#include <array>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/deferred_close.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/stragglers.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "kernel/base/clock.h"

namespace djinn::daemon::testing {

class NoWorkers final : private WorkerListener {
 public:
  NoWorkers(Loop& loop, const Clock& clock)
      : events(clock),
        refusals(clock, events),
        stragglers_(loop),
        spares_({loop, spawner_, deferred_close_, stragglers_}, std::array{kHostDevice},
                [this](DeviceId) {
                  return SparePool::Kind{"worker", ErrorCode::kWorkerLost, 0, {}, {}, traffic_};
                }),
        domains(loop, clock, spares_, *this, events, 0) {}

 private:
  void worker_ready(WorkerKey) override {}
  void worker_said(WorkerKey, const ipc::WorkerEvent&) override {}
  bool worker_died(WorkerKey, const WorkerDeath&) override { return false; }

 public:
  Events events;
  QuotaRefusals refusals;

 private:
  Traffic traffic_;
  Spawner spawner_;
  Stragglers stragglers_;
  DeferredClose deferred_close_;
  SpareWorkers spares_;

 public:
  Domains domains;
};

}  // namespace djinn::daemon::testing
