// SPDX-License-Identifier: Apache-2.0

// Reports: what djinnctl shows. A user sees what is theirs, administrators all.
#pragma once

#include <array>
#include <functional>
#include <list>

#include "daemon/djinnd/access/user_names.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/programs/programs.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/gpu.h"
#include "daemon/djinnd/workers/stats_rounds.h"
#include "ipc/codec/control_codec.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Reports {
 public:
  Reports(Loop& loop, const Clock& clock, const Devices& devices, const Quotas& quotas,
          Domains& domains, Models& models, Programs& programs, Sessions& sessions, Events& events,
          StatsRounds& stats, const Gpus& gpus, const DeferredClose& deferred_close, Turns& turns,
          const Principals& principals);

  // Asks the workers for their counts first.
  void status(const Waiter& waiter, const Caller& caller, const ipc::GetStatus& request);
  void sessions(const Waiter& waiter, const Caller& caller, const ipc::ListSessions& request);
  void models(const Waiter& waiter, const Caller& caller, const ipc::ListModels& request);
  // The uses of a model that the caller sees, as far as they are theirs to see.
  void uses(const Waiter& waiter, const Caller& caller, const ipc::ListUses& request);
  // What a user is called now; the number of one who is not known yet, and is then looked up.
  [[nodiscard]] std::string name_now(Owner user);
  // Calls back when they have names, or after a moment (user_names.h).
  void when_known(const std::set<Owner>& users, std::function<void()> then) {
    names_.when_known(users, std::move(then));
  }
  // Somebody will want to know what the user is called.
  void want_name(Owner user) { names_.want(user); }
  // Calls back when reports can call users by name (user_names.h).
  void when_named(std::function<void()> then);
  // Whom they would call so: who has anything here.
  [[nodiscard]] std::set<Owner> named_users() const;
  // The same lists, whole.
  [[nodiscard]] std::vector<ipc::SessionReport> sessions_seen_by(const Caller& caller);
  [[nodiscard]] std::vector<ipc::ModelReport> models_seen_by(const Caller& caller);
  [[nodiscard]] std::vector<ipc::UseReport> uses_seen_by(const Caller& caller, ModelId model);
  // What users call it: all of them for administrators, for others themselves.
  [[nodiscard]] std::vector<ipc::UseReport> names_seen_by(const Caller& caller, ModelId model);
  void programs(const Waiter& waiter, const Caller& caller, const ipc::ListPrograms& request);
  // Sums over all users, as in status: nothing of others shows in them but how much is left.
  void devices(const Waiter& waiter);
  // The same list.
  [[nodiscard]] std::vector<ipc::DeviceReport> all_devices() const;
  void memory(const Waiter& waiter);
  void own_memory(const Waiter& waiter, const Session& session);

  void events(const Waiter& waiter, const Caller& caller, const ipc::FollowEvents& request);
  // An event was told; who follows hears of it soon.
  void event_told();
  void session_left(SessionId session);
  // The settings in force; none where nobody could have written any.
  void set_settings(std::vector<ipc::SettingReport> settings) { settings_ = std::move(settings); }
  // What stands before the paths of a service's configuration.
  void set_config_root(const std::string& root) { config_root_ = ipc::showable_name(root); }

  // --- for metrics: the same numbers, of all users
  [[nodiscard]] std::array<ipc::MemoryReport, 3> pools_of(const Memory& memory) const;
  // The only pool of a GPU.
  [[nodiscard]] ipc::MemoryReport copies_report(const Memory& memory) const;
  // How many sessions are in each ipc::SessionState. Connections that have not said hello count as
  // none.
  [[nodiscard]] std::array<uint64_t, ipc::kSessionStates> session_states() const;
  // Models that clients loaded into themselves, as they say: of all sessions, and no more than
  // fits.
  [[nodiscard]] uint64_t stated_local_models() const;
  // Sequence groups, by GroupPlace.
  [[nodiscard]] std::array<uint64_t, kGroupPlaces> group_places() const;
  // How many models are in each ipc::ModelState.
  [[nodiscard]] std::array<uint64_t, ipc::kModelStates> model_states() const;

 private:
  struct Follower {
    Waiter waiter;
    Caller caller;
    ipc::FollowEvents request;
  };
  [[nodiscard]] ipc::EventList events_for(const Follower& follower) const;
  void answer_followers();
  [[nodiscard]] ipc::StatusReport make_status(const Caller& caller,
                                              const ipc::GetStatus& request) const;
  [[nodiscard]] std::set<Owner> users_here() const;
  [[nodiscard]] ipc::QuotaReport quota_of(Owner user, bool is_admin) const;
  [[nodiscard]] ipc::SessionReport report_of(const Session& session);
  [[nodiscard]] ipc::ModelReport report_of(const Model& model, const Caller& caller);
  // The reports from the first asked for on that fit a message.
  template <typename List, typename Item>
  void answer_page(const Waiter& waiter, std::vector<Item> List::*items, uint32_t first,
                   std::function<std::vector<Item>()> make);
  [[nodiscard]] std::vector<ipc::ProgramReport> programs_seen_by(const Caller& caller);
  [[nodiscard]] ipc::ProgramReport report_of(const Program& program);
  [[nodiscard]] ipc::SessionWait wait_of(const Session& session, bool running) const;
  [[nodiscard]] ipc::DeviceReport report_of(const Memory& memory) const;
  [[nodiscard]] ipc::DeviceReport report_of(const Gpu& gpu) const;
  [[nodiscard]] uint32_t lanes_on(DeviceId device) const;
  [[nodiscard]] ipc::MemoryReport weights_report(const Memory& memory) const;
  // idle_bytes: what would come free of it (idle_memory.h).
  [[nodiscard]] ipc::MemoryReport sessions_report(const Memory& memory, uint64_t idle_bytes) const;
  [[nodiscard]] ipc::MemoryReport lanes_report(const Memory& memory, uint64_t idle_bytes) const;

  Loop& loop_;
  const Clock& clock_;
  const Devices& devices_;
  const Quotas& quotas_;
  Domains& domains_;
  Models& models_;
  Programs& programs_;
  Sessions& sessions_;
  Events& events_;
  StatsRounds& stats_;
  const Gpus& gpus_;
  const DeferredClose& deferred_close_;
  Turns& turns_;
  uint64_t started_wall_ns_;
  std::string cpu_name_;
  UserNames names_;
  std::list<Follower> followers_;
  Timer follow_;
  std::vector<ipc::SettingReport> settings_;
  std::string config_root_;
};

}  // namespace djinn::daemon
