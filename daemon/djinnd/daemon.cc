// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/daemon.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/djinnd/host/version.h"
#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

// Says who may connect. If the socket was passed by systemd, only its unit knows that.
std::string whom_it_serves(const Options& options) {
  if (options.user_mode) return "one user";
  return options.socket_group.empty() ? "who may use its socket" : "group " + options.socket_group;
}

// Spilling is on unless the configuration sets the directory to nothing.
bool wants_spill(const Options& options) {
  const auto written = options.written.find("memory.spill_directory");
  return written == options.written.end() || !written->second.empty();
}

// There is the host's memory, and in tests one more device.
std::vector<DeviceId> devices_of(const Options& options) {
  std::vector<DeviceId> devices{kHostDevice};
  if (options.test_device_bytes > 0) devices.push_back(kTestDevice);
  return devices;
}

// Whose workers there are, once somebody needs them.
std::vector<DeviceId> computing_devices_of(const Options& options) {
  std::vector<DeviceId> devices = devices_of(options);
  devices.insert(devices.end(), options.gpus.begin(), options.gpus.end());
  return devices;
}

std::map<DeviceId, GpuExtents> extents_of(const Gpus& gpus) {
  std::map<DeviceId, GpuExtents> extents;
  for (const auto& gpu : gpus.all()) extents.emplace(gpu->device(), *gpu);
  return extents;
}

// What a GPU has is known when its mover has said it.
std::vector<DeviceMemory> memories_of(const Options& options, ExtentSource& host,
                                      ExtentSource& fake, std::map<DeviceId, GpuExtents>& gpus) {
  std::vector<DeviceMemory> memories;
  for (const DeviceId device : devices_of(options)) {
    device == kTestDevice ? memories.push_back({device, options.test_device_bytes, fake})
                          : memories.push_back({device, options.memory_bytes, host});
  }
  for (auto& [device, extents] : gpus) memories.push_back({device, 0, extents});
  return memories;
}

Error stopping() {
  return {ErrorCode::kDisconnected, "djinnd is stopping."};
}

}  // namespace

Daemon::Daemon(Loop& loop, const Clock& clock, const Options& options, ReloadOptions reload_options,
               uint64_t seed)
    : options_(with_shares(options, options.memory_bytes)),
      loop_(loop),
      clock_(clock),
      ids_(seed),
      authority_(options.user_mode ? Authority({}, ::geteuid())
                                   : Authority(group_named(options.admin_group))),
      memory_work_(loop, "memory"),
      host_memory_(memory_work_),
      host_extents_(host_memory_, options.test_extent_fault_at),
      fake_extents_(memory_work_, false),
      file_work_(loop, "files"),
      user_work_(loop),
      stragglers_(loop),
      turns_(clock),
      arrivals_(turns_, *this),
      turn_(loop, [this] { take_turn(); }),
      next_turn_(loop, [this] { take_turn(); }),
      events_(clock),
      kernels_(file_work_, options.cache_directory, KernelStore::key_of(options)),
      spare_kinds_(options_, kernels_, traffic_.workers, traffic_.loaders,
                   [this](DeviceId gpu) { return gpus_.find(gpu)->uuid(); }),
      spare_workers_({loop, spawner_, deferred_close_, stragglers_}, computing_devices_of(options),
                     [this](DeviceId device) { return spare_kinds_.workers(device); }),
      spare_loaders_({loop, spawner_, deferred_close_, stragglers_}, spare_kinds_.loaders()),
      gpus_({loop, spawner_, deferred_close_, stragglers_}, events_, options.gpus, options.mover,
            options.cuda_worker, options.test_nodes),
      gpu_extents_(extents_of(gpus_)),
      devices_(memories_of(options, host_extents_, fake_extents_, gpu_extents_),
               options.session_quota_bytes, quotas_),
      refusals_(clock, events_),
      domains_(loop, clock, spare_workers_, *this, events_, options.hang_timeout_ms),
      lanes_(devices_, domains_, refusals_,
             [this](WorkerKey key, const Error& why) { base_refused(key, why); }),
      sessions_({loop, traffic_.clients, deferred_close_, turns_}, clock, ids_, devices_, quotas_,
                domains_, authority_, events_, refusals_, lanes_,
                {memory_work_, file_work_, user_work_}, inquiries_, *this,
                {options.spill_directory.value_or(""), options.spill_idle_ms,
                 options_.spill_limit_bytes.value_or(0), wants_spill(options)}),
      models_(loop, clock, ids_, spare_loaders_, devices_, quotas_, domains_, sessions_, events_,
              gpus_, *this, options.keep_alive_ms),
      reclaimers_(loop, devices_, models_, sessions_, events_, options.thresholds),
      programs_(ids_, domains_, models_, sessions_, events_),
      stats_(loop, domains_),
      reports_(loop, clock, devices_, quotas_, domains_, models_, programs_, sessions_, events_,
               stats_, gpus_, deferred_close_, turns_, authority_.principals()),
      schedules_(domains_, sessions_, reports_),
      published_(loop, clock, spare_loaders_, sessions_, reports_, options.store_directory,
                 options.keep_free),
      service_(loop, clock, notifier_, *this),
      drain_(loop, clock, sessions_, events_, service_, options.drain_timeout_ms.value_or(0)),
      reload_(loop, options_, std::move(reload_options), authority_, devices_, quotas_, sessions_,
              models_, reclaimers_, published_, reports_, drain_, events_, service_),
      device_health_(spare_workers_, spare_loaders_, sessions_, models_, published_, events_),
      hang_watchdog_(loop, domains_, sessions_, options.hang_timeout_ms),
      manager_(loop, clock, turns_, authority_, inquiries_, devices_, sessions_, models_, programs_,
               reports_, reload_, drain_, options.bus,
               options.user_mode ? std::optional(Owner::of_user(::geteuid())) : std::nullopt),
      requests_(devices_, gpus_, domains_, sessions_, models_, programs_, reports_, schedules_,
                user_work_, turns_, drain_, published_),
      fd_store_(notifier_, devices_, events_, store_size()),
      metrics_(loop, clock, events_, traffic_, devices_, gpus_, domains_, models_, programs_,
               sessions_.sequences().spill(), stats_, reports_, drain_, service_, fd_store_,
               journal_, notifier_, deferred_close_) {
  listen_to_events();
  turns_.on_owed([this] { next_turn_.start_once(0); });
  listen_to_gpus();
}

void Daemon::listen_to_events() {
  events_.listen([this](const Event& event) { journal_.write(event); });
  events_.listen([this](const Event& event) { manager_.on_event(event); });
  events_.listen([this](const Event&) { reports_.event_told(); });
  events_.set_names([this](Owner user) { return reports_.name_now(user); });
}

void Daemon::listen_to_gpus() {
  for (const auto& gpu : gpus_.all()) {
    gpu->on_lost([this, gpu = gpu.get()] { lose(*gpu); });
    gpu->on_anchor([this, device = gpu->device()](const Fd& node) {
      fd_store_.keep_anchor(device, node);
      fd_store_.keep_copies(models_.copies().kept());
    });
    gpu->on_capacity([this, device = gpu->device()](uint64_t bytes) { has_size(device, bytes); });
  }
}

// What was there is out of reach, and each run would fail: who is there hears why, once.
void Daemon::lose(const Gpu& gpu) {
  const Error why = gpu.not_ready();
  sessions_.end_all_on(
      gpu.device(),
      {why.code, fmt::format("{} The session and what it had there are lost. Open another one, on "
                             "cpu:0 or once the GPU is back.",
                             why.message)});
  domains_.abandon(gpu.device());
  models_.copies().gpu_lost(gpu.device());
  fd_store_.forget_anchor(gpu.device());
}

// A child process that is disposed of hands itself over to the stragglers.
Daemon::~Daemon() {
  loop_.drop_deferred();
}

Status Daemon::start(ActivationFds passed) {
  DJINN_ASSERT(listener_ == nullptr);
  tell_problems(events_, EventKind::kConfigIgnored, options_.config_warnings);
  tell_problems(events_, EventKind::kConfigWarning, options_.setting_warnings);
  tell_of_admin_group();
  take_back(std::move(passed.kept));
  const Listener::Events take = visitors_by(Entrance::kClients);
  if (passed.socket) {
    listener_ = Listener::adopt(loop_, *std::move(passed.socket), take);
  } else {
    DJINN_TRY(listener_,
              Listener::open(loop_, {options_.runtime_dir, options_.socket_group}, take));
  }
  DJINN_CHECK(listen_to_gates(std::move(passed.gates)));
  if (options_.measures_kernels) kernels_.read();
  spare_loaders_.start();
  spare_workers_.start();
  gpus_.start();
  const std::string path = listener_->path();
  emit(EventKind::kDaemonStarted,
       fmt::format("version {} serves {}{}{}: {} a lane, {}", kVersion, whom_it_serves(options_),
                   path.empty() ? "" : " at " + path, gate_listener_ ? ", and djinn-gate" : "",
                   count_text(options_.threads, "thread"), size_text(options_.memory_bytes)));
  service_.ready();
  manager_.start();
  sessions_.sequences().check_spill();
  const Status told = metrics_.serve(std::move(passed.metrics));
  if (!told) log("metrics are not served: {}", told.error().message);
  return {};
}

void Daemon::take_back(std::map<std::string, Fd> kept) {
  for (const auto& gpu : gpus_.all()) gpu->take_anchor(fd_store_.take_anchor(kept, gpu->device()));
  std::vector<KeptCopy> copies = fd_store_.take_copies(kept);
  models_.take_back(fd_store_.take_back(std::move(kept)));
  for (KeptCopy& copy : copies) {
    if (gpus_.find(copy.device) == nullptr) continue;
    models_.copies().take_back(copy.model, copy.device, std::move(copy.extents));
  }
  fd_store_.keep_copies(models_.copies().kept());
}

// A limit that is larger was written before anybody knew.
void Daemon::has_size(DeviceId device, uint64_t bytes) {
  const Result<uint64_t> limit = limit_of(options_, device, bytes);
  if (!limit) tell_problems(events_, EventKind::kConfigWarning, {limit.error().message});
  devices_.of(device).set_total(limit.ok() ? limit.value() : bytes);
  models_.copies().gpu_ready(device);
}

// The group of the packages may be missing where djinnd is started by hand, and nobody named it.
void Daemon::tell_of_admin_group() {
  if (authority_.has_admin_group() || options_.user_mode) return;
  if (options_.admin_group == kAdminGroup) return;
  tell_problems(
      events_, EventKind::kConfigWarning,
      {fmt::format("--admin-group names '{}', and there is no such group, or the system does not "
                   "know it now: only root is an administrator. Make the group, or name another, "
                   "and start djinnd anew.",
                   options_.admin_group)});
}

void Daemon::stop() {
  emit(EventKind::kDaemonStopping, "stopping");
  service_.stopping();
  metrics_.stop();
  listener_.reset();
  gate_listener_.reset();
  next_turn_.stop();
  hang_watchdog_.stop();
  drain_.stop();
  sessions_.end_all(stopping());
  DJINN_ASSERT(std::ranges::all_of(sessions_.all(), [](const auto& entry) {
    return entry.second->phase == SessionPhase::kLeaving;
  }));
  manager_.stop();
}

Listener::Events Daemon::visitors_by(Entrance entrance) {
  return {[this, entrance](Fd socket, const ipc::PeerCredentials& peer) {
            arrivals_.connected(std::move(socket), {peer, entrance});
          },
          [this, entrance](Fd socket, const ipc::PeerCredentials& peer) {
            arrivals_.too_many(std::move(socket), {peer, entrance});
          }};
}

Status Daemon::listen_to_gates(std::optional<Fd> passed) {
  authority_.principals().on_full([this] { return reports_.named_users(); });
  const Listener::Events take = visitors_by(Entrance::kGates);
  if (passed) {
    gate_listener_ = Listener::adopt(loop_, *std::move(passed), take);
  } else if (options_.gate_socket) {
    DJINN_TRY(gate_listener_, Listener::open_for_gates(loop_, options_.runtime_dir, take));
  }
  return {};
}

void Daemon::serve(Fd socket, const Visitor& visitor) {
  const uid_t user = visitor.peer.uid;
  const Status served = check_serves(user);
  if (!served) return turn_away(std::move(socket), visitor, served.error());
  // What this user does is logged with their name, which a thread looks up meanwhile.
  reports_.want_name(Owner::of_user(user));
  sessions_.connected(std::move(socket), visitor);
  hang_watchdog_.watch();
  service_.changed();
}

void Daemon::turn_away(Fd socket, const Visitor& visitor, const Error& why) {
  sessions_.turn_away(std::move(socket), visitor, why);
}

Status Daemon::check_serves(uid_t user) const {
  if (!listener_) return stopping();
  if (options_.user_mode && user != ::geteuid()) {
    return Error{ErrorCode::kPermissionDenied, "This djinnd serves another user. Start your own."};
  }
  if (user != unmapped_) return {};
  return Error{
      ErrorCode::kPermissionDenied,
      fmt::format("djinnd's user namespace gives all users whom it does not map the number {}, so "
                  "who has it cannot be told from others. Map yours there.",
                  user)};
}

// A timer makes the turn in which a rest ends. It is set again in each turn, because the next rest
// may end before the one for which it was set. libuv fires timers after its checks, and looks at no
// descriptors in between.
void Daemon::take_turn() {
  const std::optional<uint64_t> next_ns = turns_.take();
  if (next_ns) next_turn_.start_once(*next_ns / 1'000'000 + 1);
}

void Daemon::client_said(Session& session, ClientMessage message) {
  requests_.handle(session, std::move(message));
}

void Daemon::session_attached(SessionId session) {
  DJINN_ASSERT(sessions_.find(session) != nullptr && sessions_.find(session)->attached);
  programs_.session_attached(session);
}

void Daemon::session_left(SessionId session) {
  const Session* const left = sessions_.find(session);
  DJINN_ASSERT(left == nullptr || left->phase == SessionPhase::kLeaving);
  if (left != nullptr) programs_.session_left(session, left->worker());
  models_.session_left(session);
  published_.session_left(session);
  reports_.session_left(session);
  service_.changed();
}

void Daemon::model_gone(ModelId id) {
  DJINN_ASSERT(models_.table().all().at(id).phase == ModelPhase::kUnloading);
  programs_.model_gone(id);
}

void Daemon::models_changed() {
  reclaimers_.changed();
  fd_store_.keep(models_.table().all(), models_.returning());
  fd_store_.keep_copies(models_.copies().kept());
  service_.changed();
}

Service::StatusLine Daemon::describe() const {
  const auto& models = models_.table().all();
  uint64_t loading = 0, bytes = 0, read = 0;
  for (const auto& [id, model] : models) {
    if (model.phase != ModelPhase::kLoading) continue;
    ++loading;
    bytes += model.bytes;
    read += model.bytes_loaded;
  }
  const std::string progress = loading == 0 ? "0 loading"
                                            : fmt::format("{} loading: {} of {} read", loading,
                                                          size_text(read), size_text(bytes));
  const std::string sessions =
      drain_.draining() ? fmt::format("Draining, {} left", count_text(sessions_.count(), "session"))
                        : count_text(sessions_.all().size(), "session");
  return {
      fmt::format("{}, {} ({}), {} of {} granted", sessions, count_text(models.size(), "model"),
                  progress, size_text(devices_.granted_bytes()), size_text(devices_.total_bytes())),
      loading > 0};
}

bool Daemon::is_healthy() {
  const Status books = devices_.check();
  if (!books) {
    emit(EventKind::kWatchdogWithheld, "the watchdog is not answered: " + books.error().message);
  }
  return books.ok();
}

void Daemon::emit(EventKind kind, std::string text) {
  events_.emit({kind, std::move(text), {}});
}

// The order matters: a program needs its model, and a session the programs that its open runs name.
// Such a program may not be admitted yet; then only the runs that need it wait.
void Daemon::worker_ready(WorkerKey key) {
  DJINN_ASSERT(domains_.ready(key));
  join_baton(key);
  models_.worker_ready(key);
  programs_.worker_ready(key);
  sessions_.worker_ready(key);
}

// Without a slot it computes whenever it likes.
void Daemon::join_baton(WorkerKey key) {
  const auto place = batons_.enter(key);
  if (!place) return log("no turns for a worker: {}", place.error().message);
  domains_.send(key, {ipc::JoinBaton{place->slot}}, std::array{place->page});
}

bool Daemon::worker_died(WorkerKey key, const WorkerDeath& death) {
  DJINN_ASSERT(!domains_.ready(key));
  batons_.leave(key);
  lanes_.worker_died(key);
  const bool in_step = sessions_.activity_of(key).in_step;
  const bool progressed =
      sessions_.worker_died(key, death, programs_.definers_to_blame(key, death));
  DJINN_ASSERT(std::ranges::none_of(sessions_.all(), [key](const auto& entry) {
    return entry.second->worker() == key && entry.second->attached;
  }));
  models_.worker_died(key, death);
  programs_.worker_died(key, death, in_step);
  stats_.worker_died(key);
  schedules_.worker_died(key);
  device_health_.end_vain_waits();
  return progressed;
}

void Daemon::worker_said(WorkerKey key, const ipc::WorkerEvent& event) {
  struct Route {
    Daemon& to;
    WorkerKey key;
    void operator()(const ipc::WorkerReady&) const {}
    void operator()(const ipc::Attached& e) const { to.sessions_.on_attached(key, e); }
    void operator()(const ipc::Detached& e) const { to.sessions_.on_detached(key, e); }
    void operator()(const ipc::ModelAdded& e) const { to.models_.on_model_added(key, e); }
    void operator()(const ipc::ModelDropped& e) const { to.models_.on_model_dropped(key, e); }
    void operator()(const ipc::ModelParked& e) const { to.models_.on_model_parked(key, e); }
    void operator()(const ipc::ModelWanted& e) const { to.models_.on_model_wanted(key, e); }
    void operator()(const ipc::ProgramAdded& e) const { to.programs_.on_program_added(key, e); }
    void operator()(const ipc::ProgramRefused& e) const { to.programs_.on_program_refused(key, e); }
    void operator()(const ipc::ProgramLookedAt&) const {}  // the supervisor's
    void operator()(const ipc::SequenceAdded& e) const { to.sessions_.on_sequence_added(key, e); }
    void operator()(const ipc::SequenceDropped& e) const {
      to.sessions_.sequences().on_sequence_dropped(key, e);
    }
    void operator()(const ipc::SequenceSpilled& e) const {
      const bool honest = to.sessions_.sequences().on_sequence_spilled(key, e);
      if (!honest) to.domains_.find(key)->kill("spills what it was not asked to");
    }
    void operator()(const ipc::SequenceRestored& e) const {
      to.sessions_.sequences().on_sequence_restored(key, e);
    }
    void operator()(const ipc::GrantRequest& e) const { to.asked_for_memory(key, e); }
    void operator()(const ipc::GrantReturn& e) const {
      const bool honest = LaneMemory::is_of_lane(e.kind) ? to.lanes_.on_grant_return(key, e)
                                                         : to.sessions_.on_grant_return(key, e);
      if (!honest) to.domains_.find(key)->kill("gives back what it was not given");
    }
    void operator()(const ipc::RefsTrimmed& e) const { to.sessions_.on_refs_trimmed(key, e); }
    void operator()(const ipc::SessionBroken& e) const { to.sessions_.on_session_broken(key, e); }
    void operator()(const ipc::WorkerStats& e) const { to.stats_.on_worker_stats(key, e); }
    void operator()(const ipc::LaneAwake&) const {}
    void operator()(const ipc::LaneSchedule& e) const { to.schedules_.on_schedule(key, e); }
  };
  DJINN_ASSERT(domains_.find(key) != nullptr);
  const Turns::Bill bill(turns_, key.owner);
  std::visit(Route{*this, key}, event.body);
}

// Its sessions would be refused whatever they ask for, and the next worker would fare no better.
void Daemon::base_refused(WorkerKey key, const Error& why) {
  sessions_.end_all_of(key, {why.code, fmt::format("There is no memory for what a worker on {} "
                                                   "takes for itself: {}",
                                                   text_of(key.device), why.message)});
  domains_.find(key)->abandon("has more than there is for it");
}

void Daemon::asked_for_memory(WorkerKey key, const ipc::GrantRequest& event) {
  if (event.bytes == 0) {
    return domains_.answer_grant(
        key, event.request, Error{ErrorCode::kInvalidArgument, "A grant needs at least one byte."});
  }
  LaneMemory::is_of_lane(event.kind) ? lanes_.on_grant_request(key, event)
                                     : sessions_.on_grant_request(key, event);
}

}  // namespace djinn::daemon
