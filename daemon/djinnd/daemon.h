// SPDX-License-Identifier: Apache-2.0

// Daemon: the parts of djinnd wired together. Nothing is decided here but who hears of what.
#pragma once

#include <functional>
#include <memory>

#include "daemon/djinnd/access/inquiries.h"
#include "daemon/djinnd/access/listener.h"
#include "daemon/djinnd/access/user_queues.h"
#include "daemon/djinnd/dbus/manager.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/events/journal.h"
#include "daemon/djinnd/front/reports.h"
#include "daemon/djinnd/front/requests.h"
#include "daemon/djinnd/host/config.h"
#include "daemon/djinnd/host/keeper.h"
#include "daemon/djinnd/host/notifier.h"
#include "daemon/djinnd/host/options.h"
#include "daemon/djinnd/host/service.h"
#include "daemon/djinnd/loop/closers.h"
#include "daemon/djinnd/loop/id_source.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/turns.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/metrics/metrics.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/programs/programs.h"
#include "daemon/djinnd/reclaim/reclaimer.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/lane_memory.h"
#include "daemon/djinnd/workers/spare_pool.h"
#include "daemon/djinnd/workers/stats_rounds.h"

namespace djinn::daemon {

// The options that a configuration amounts to, with the command line over it.
using Reread = std::function<Result<Options>(const Config&)>;

class Daemon final : public WorkerSupervisor::Owner,
                     private SessionListener,
                     private ModelListener {
 public:
  Daemon(Loop& loop, const Clock& clock, const Options& options, Reread reread, uint64_t seed);
  ~Daemon() override;

  // Listens, on the passed sockets if there are any, with the models that a predecessor left, and
  // starts the spares. Errors: those of Listener::open.
  Status start(Passed passed);
  // Takes up what the configuration files change of the settings that reload, once the names in
  // them are looked up. Errors: kInvalidArgument; then nothing is changed.
  Status reload();
  // Takes in nobody new, and stops the loop when no run is in flight or their time is over; asked
  // again, at once.
  void wind_up();
  // Ends all sessions and children; the loop may then be destroyed.
  void stop();

  void worker_ready(DomainId domain) override;
  void worker_said(DomainId domain, const ipc::WorkerEvent& event) override;
  bool worker_died(DomainId domain, const WorkerDeath& death) override;

 private:
  void take_up(const Config& config, Options written);
  // Of what reloads, quotas and what is shown; at the start, too.
  void take_settings(Options written);
  void connected(Fd socket, const ipc::PeerCredentials& peer);
  // Whether who connects is served here at all. Errors: kDisconnected, kPermissionDenied.
  [[nodiscard]] Status check_serves(uid_t user) const;
  [[nodiscard]] Status check_may_wait(const Fd& socket, uid_t user) const;
  void take_turn();
  void client_said(Session& session, ClientMessage message) override;
  void session_left(SessionId session) override;
  void model_gone(ModelId id) override;
  void models_changed() override;
  void look_for_hangs();
  void device_changed();
  void asked_for_memory(DomainId domain, const ipc::GrantRequest& event);
  void not_kept(const Model& model, const std::string& why);
  void set_draining(bool draining);
  ipc::Collected collect_garbage();
  void see_if_wound_up();
  [[nodiscard]] bool is_healthy();
  void tell(EventKind kind, std::string text);
  [[nodiscard]] Service::Line describe() const;
  void note_upgrade(const SparePool& pool);
  [[nodiscard]] ChildProgram worker_program();
  [[nodiscard]] ChildProgram loader_program() const;

  Options options_;
  Reread reread_;
  Loop& loop_;
  const Clock& clock_;
  Spawner spawner_;
  IdSource ids_;
  Authority authority_;
  const std::optional<uid_t> unmapped_ = number_of_unmapped();
  Journal journal_;
  Notifier notifier_;
  WorkQueue memory_work_;
  WorkQueue file_work_;
  WorkQueue name_work_;
  UserQueues user_work_;
  Closers closers_;
  Stragglers stragglers_;
  Turns turns_;
  size_t connecting_ = 0;  // whose turn has not come
  Check turn_;
  Timer next_turn_;
  Events events_;
  Inquiries inquiries_;
  Traffics traffics_;
  SparePool spare_workers_;
  SparePool spare_loaders_;
  Quotas quotas_;
  Memory memory_;
  QuotaRefusals refusals_;
  Domains domains_;
  LaneMemory lanes_;
  Sessions sessions_;
  Models models_;
  Reclaimer reclaimer_;
  Programs programs_;
  StatsRounds stats_;
  Reports reports_;
  Manager manager_;
  Requests requests_;
  Service service_;
  Keeper keeper_;
  Metrics metrics_;
  Timer hang_timer_;
  Timer wind_up_timer_;
  std::optional<uint64_t> wind_up_until_ns_;
  bool draining_ = false;
  bool device_lost_ = false;
  bool upgrade_told_ = false;
  uint64_t workers_started_ = 0;
  std::unique_ptr<Listener> listener_;
};

}  // namespace djinn::daemon
