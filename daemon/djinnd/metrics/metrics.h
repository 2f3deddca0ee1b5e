// SPDX-License-Identifier: Apache-2.0

// Metrics: what djinnd counts for Prometheus, and how it is told: a listener of the events, and the
// maker of snapshots for the server's thread (metrics_server.h).
//
// A snapshot is made when somebody asks for one: the workers are asked for their counts, and it is
// taken when they have answered. While nobody asks, nothing is done but to count.
// Loop's thread, but where it says otherwise.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/events/journal.h"
#include "daemon/djinnd/front/drain.h"
#include "daemon/djinnd/front/reports.h"
#include "daemon/djinnd/host/fd_store.h"
#include "daemon/djinnd/host/notifier.h"
#include "daemon/djinnd/host/service.h"
#include "daemon/djinnd/loop/traffic.h"
#include "daemon/djinnd/metrics/metrics_server.h"
#include "daemon/djinnd/metrics/metrics_snapshot.h"
#include "daemon/djinnd/sessions/spill.h"
#include "daemon/djinnd/workers/gpu.h"
#include "daemon/djinnd/workers/stats_rounds.h"

namespace djinn::daemon {

// The traffic of all peers of a kind.
struct PeerTraffic {
  Traffic clients;
  Traffic workers;
  Traffic loaders;
};

class Metrics {
 public:
  Metrics(Loop& loop, const Clock& clock, Events& events, const PeerTraffic& traffic,
          const Devices& devices, const Gpus& gpus, Domains& domains, Models& models,
          Programs& programs, const Spill& spill, StatsRounds& stats, const Reports& reports,
          const Drain& drain, const Service& service, const FdStore& fd_store,
          const Journal& journal, const Notifier& notifier, const DeferredClose& deferred_close);

  // Answers on these sockets from now on. Errors: those of MetricsServer::start.
  Status serve(std::vector<Fd> sockets);
  // Ends the server's thread.
  void stop() { server_.reset(); }

  // A snapshot of all numbers now.
  [[nodiscard]] MetricsSnapshot take() const;

 private:
  void on_event(const Event& event);
  void count_eviction(const Event& event);
  void asked();
  void add_memory(MetricsSnapshot& shot) const;
  void add_gpu(const Gpu& gpu, MetricsSnapshot& shot) const;
  void add_models(MetricsSnapshot& shot) const;
  void add_groups(MetricsSnapshot& shot) const;
  void add_programs(MetricsSnapshot& shot) const;
  void add_workers(MetricsSnapshot& shot) const;
  void judge(MetricsSnapshot& shot) const;

  Loop& loop_;
  const Clock& clock_;
  const PeerTraffic& traffic_;
  const Devices& devices_;
  const Gpus& gpus_;
  Domains& domains_;
  Models& models_;
  Programs& programs_;
  const Spill& spill_;
  StatsRounds& stats_;
  const Reports& reports_;
  const Drain& drain_;
  const Service& service_;
  const FdStore& fd_store_;
  const Journal& journal_;
  const Notifier& notifier_;
  const DeferredClose& deferred_close_;
  uint64_t started_wall_ns_;
  std::array<uint64_t, ipc::kEventKinds> events_{};
  std::array<uint64_t, kEvictReasons> evictions_{};
  uint64_t evicted_bytes_ = 0;
  uint64_t spilled_bytes_ = 0;
  uint64_t restored_bytes_ = 0;
  std::map<ModelId, uint64_t> loading_;  // since when, monotonic
  std::set<ModelId> on_disk_;            // evicted, and neither back nor gone
  ipc::TimeHistogram load_time_;
  uint64_t loop_delay_ns_ = 0;
  std::atomic<uint64_t> asked_ns_{0};  // by the server's thread
  Wake wake_;
  std::unique_ptr<MetricsServer> server_;  // before the wake goes, its thread does
};

}  // namespace djinn::daemon
