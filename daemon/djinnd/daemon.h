// SPDX-License-Identifier: Apache-2.0

// Daemon: the parts of djinnd wired together. It decides who hears of what, and refuses users and
// connections that djinnd does not serve.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "daemon/djinnd/access/arrivals.h"
#include "daemon/djinnd/access/inquiries.h"
#include "daemon/djinnd/access/listener.h"
#include "daemon/djinnd/access/user_queues.h"
#include "daemon/djinnd/dbus/manager.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/events/journal.h"
#include "daemon/djinnd/front/device_health.h"
#include "daemon/djinnd/front/drain.h"
#include "daemon/djinnd/front/published.h"
#include "daemon/djinnd/front/reload.h"
#include "daemon/djinnd/front/reports.h"
#include "daemon/djinnd/front/requests.h"
#include "daemon/djinnd/front/schedules.h"
#include "daemon/djinnd/host/config.h"
#include "daemon/djinnd/host/fd_store.h"
#include "daemon/djinnd/host/kernel_store.h"
#include "daemon/djinnd/host/notifier.h"
#include "daemon/djinnd/host/options.h"
#include "daemon/djinnd/host/service.h"
#include "daemon/djinnd/loop/deferred_close.h"
#include "daemon/djinnd/loop/id_source.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/turns.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/faulty_extents.h"
#include "daemon/djinnd/memory/host_extents.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/metrics/metrics.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/programs/programs.h"
#include "daemon/djinnd/reclaim/reclaimers.h"
#include "daemon/djinnd/sessions/hang_watchdog.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "daemon/djinnd/spare_kinds.h"
#include "daemon/djinnd/workers/batons.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/gpu.h"
#include "daemon/djinnd/workers/gpu_extents.h"
#include "daemon/djinnd/workers/lane_memory.h"
#include "daemon/djinnd/workers/spare_pool.h"
#include "daemon/djinnd/workers/spare_workers.h"
#include "daemon/djinnd/workers/stats_rounds.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Daemon final : public WorkerListener,
                     private Arrivals::Door,
                     private SessionListener,
                     private ModelListener,
                     private Service::Subject {
 public:
  Daemon(Loop& loop, const Clock& clock, const Options& options, ReloadOptions reload_options,
         uint64_t seed);
  ~Daemon() override;

  // Listens, on the passed sockets if there are any, with the models that a predecessor left, and
  // starts the spares. Errors: those of Listener::open.
  Status start(ActivationFds passed);
  Status reload() { return reload_.begin(); }
  void wind_up() { drain_.wind_up(); }
  // Ends all sessions and children; the loop may then be destroyed.
  void stop();

  void worker_ready(WorkerKey key) override;
  void worker_said(WorkerKey key, const ipc::WorkerEvent& event) override;
  bool worker_died(WorkerKey key, const WorkerDeath& death) override;

 private:
  friend struct DaemonForTests;

  void serve(Fd socket, const Visitor& visitor) override;
  void turn_away(Fd socket, const Visitor& visitor, const Error& why) override;
  [[nodiscard]] Listener::Events visitors_by(Entrance entrance);
  Status listen_to_gates(std::optional<Fd> passed);
  // Whether who connects is served here at all. Errors: kDisconnected, kPermissionDenied.
  [[nodiscard]] Status check_serves(uid_t user) const;
  void take_turn();
  void client_said(Session& session, ClientMessage message) override;
  void session_attached(SessionId session) override;
  void session_left(SessionId session) override;
  void model_gone(ModelId id) override;
  void models_changed() override;
  void join_baton(WorkerKey key);
  void base_refused(WorkerKey key, const Error& why);
  void asked_for_memory(WorkerKey key, const ipc::GrantRequest& event);
  [[nodiscard]] bool is_healthy() override;
  void tell_of_admin_group();
  void take_back(std::map<std::string, Fd> kept);
  void listen_to_events();
  void listen_to_gpus();
  void lose(const Gpu& gpu);
  void has_size(DeviceId device, uint64_t bytes);
  void emit(EventKind kind, std::string text);
  [[nodiscard]] Service::StatusLine describe() const override;

  Options options_;
  Loop& loop_;
  const Clock& clock_;
  Spawner spawner_;
  IdSource ids_;
  Authority authority_;
  const std::optional<uid_t> unmapped_ = number_of_unmapped();
  Journal journal_;
  Notifier notifier_;
  WorkQueue memory_work_;
  HostExtents host_memory_;
  FaultyExtents host_extents_;
  HostExtents fake_extents_;
  WorkQueue file_work_;
  UserQueues user_work_;
  DeferredClose deferred_close_;
  Stragglers stragglers_;
  Turns turns_;
  Arrivals arrivals_;
  Check turn_;
  Timer next_turn_;
  Events events_;
  Inquiries inquiries_;
  PeerTraffic traffic_;
  KernelStore kernels_;
  SpareKinds spare_kinds_;
  SpareWorkers spare_workers_;
  SparePool spare_loaders_;
  Gpus gpus_;
  Quotas quotas_;
  std::map<DeviceId, GpuExtents> gpu_extents_;
  Devices devices_;
  QuotaRefusals refusals_;
  Domains domains_;
  LaneMemory lanes_;
  Batons batons_;
  Sessions sessions_;
  Models models_;
  Reclaimers reclaimers_;
  Programs programs_;
  StatsRounds stats_;
  Reports reports_;
  Schedules schedules_;
  Published published_;
  Service service_;
  Drain drain_;
  Reload reload_;
  DeviceHealth device_health_;
  HangWatchdog hang_watchdog_;
  Manager manager_;
  Requests requests_;
  FdStore fd_store_;
  Metrics metrics_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Listener> gate_listener_;  // null: no gate may come
};

}  // namespace djinn::daemon
