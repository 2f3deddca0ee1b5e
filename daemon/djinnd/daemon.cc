// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "daemon/djinnd/host/version.h"
#include "daemon/djinnd/loop/descriptors.h"
#include "daemon/djinnd/loop/log.h"
#include "ipc/codec/control_codec.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

// How often djinnd looks whether runs in flight have ended before it stops, and what it asks of
// systemd each time: enough for a look that comes late.
constexpr uint64_t kWindUpLookMs = 100;
constexpr uint64_t kExtendMs = 5000;
// The pause after which the next spare worker starts: a domain that just lost its worker needs the
// cores more.
constexpr uint64_t kNextWorkerAfterMs = 100;
// As long as it may take to find that a model is resident: then the loader comes back.
constexpr uint64_t kNextLoaderAfterMs = 10;
// Who may connect; of a socket that was passed, its unit knows.
std::string whom_it_serves(const Options& options) {
  if (options.user_mode) return "one user";
  return options.socket_group.empty() ? "who may use its socket" : "group " + options.socket_group;
}

Error stopping() {
  return {ErrorCode::kDisconnected, "djinnd is stopping."};
}

Error refused_config() {
  return {ErrorCode::kInvalidArgument,
          "The configuration has errors, and stays as it was. djinnd's log has file and line."};
}

std::optional<ChildReady> read_worker_ready(const ipc::Datagram& message) {
  const auto event = ipc::decode_worker_event(message.bytes);
  if (!event.ok()) return std::nullopt;
  const auto* ready = std::get_if<ipc::WorkerReady>(&event.value().body);
  if (ready == nullptr) return std::nullopt;
  return ChildReady{ready->threads, ready->landlock_abi, ready->seccomp};
}

std::optional<ChildReady> read_loader_ready(const ipc::Datagram& message) {
  const auto event = ipc::decode_loader_event(message.bytes);
  if (!event.ok()) return std::nullopt;
  const auto* ready = std::get_if<ipc::LoaderReady>(&event.value().body);
  if (ready == nullptr) return std::nullopt;
  return ChildReady{0, ready->landlock_abi, ready->seccomp};
}

}  // namespace

Daemon::Daemon(Loop& loop, const Clock& clock, const Options& options, Reread reread, uint64_t seed)
    : options_(with_shares(options, options.memory_bytes)),
      reread_(std::move(reread)),
      loop_(loop),
      clock_(clock),
      ids_(seed),
      authority_(options.user_mode ? Authority({}, ::geteuid())
                                   : Authority(group_named(options.admin_group))),
      memory_work_(loop, "memory"),
      file_work_(loop, "files"),
      name_work_(loop, "names"),
      user_work_(loop),
      stragglers_(loop),
      turns_(clock),
      turn_(loop, [this] { take_turn(); }),
      next_turn_(loop, [this] { take_turn(); }),
      events_(clock),
      spare_workers_({loop, spawner_, closers_, stragglers_},
                     {"worker", ErrorCode::kWorkerLost, kNextWorkerAfterMs,
                      [this] { return worker_program(); }, &read_worker_ready, traffics_.workers}),
      spare_loaders_({loop, spawner_, closers_, stragglers_},
                     {"loader", ErrorCode::kLoaderLost, kNextLoaderAfterMs,
                      [this] { return loader_program(); }, &read_loader_ready, traffics_.loaders}),
      memory_(options.memory_bytes, options.session_quota_bytes),
      domains_({loop, clock, spare_workers_, *this, events_}, options.hang_timeout_ms),
      sessions_({loop, clock, ids_, memory_, quotas_, domains_, authority_, events_, memory_work_,
                 file_work_, inquiries_, traffics_.clients, closers_, turns_, user_work_,
                 [this](Session& session, ClientMessage message) {
                   requests_.handle(session, std::move(message));
                 },
                 [this](SessionId session) { session_left(session); }},
                {options.spill_directory.value_or(""), options.spill_idle_ms,
                 options_.spill_limit_bytes.value_or(0)}),
      models_(
          {loop, clock, ids_, spare_loaders_, memory_, quotas_, domains_, sessions_, events_,
           sessions_.spill(), memory_work_, [this](ModelId model) { programs_.model_gone(model); },
           [this] { models_changed(); }, [this] { pressure_.note(); },
           [this](SessionId session) { return sessions_.runs(session); },
           [this] { return sessions_.leaving_bytes(); }},
          options.keep_alive_ms),
      programs_({ids_, domains_, models_, sessions_, events_}),
      stats_(loop, domains_),
      reports_({loop, clock, memory_, quotas_, domains_, models_, programs_, sessions_, events_,
                stats_, closers_, turns_}),
      manager_({loop, clock, authority_, inquiries_, memory_, sessions_, models_, programs_,
                reports_, [this] { return reload(); },
                [this](bool draining) { set_draining(draining); }, [this] { return draining_; }},
               options.bus, options.user_mode ? std::optional(::geteuid()) : std::nullopt),
      requests_({sessions_, models_, programs_, reports_, user_work_, turns_,
                 [this](bool draining) { set_draining(draining); },
                 [this] { return collect_garbage(); }}),
      service_(
          loop, clock, notifier_, [this] { return is_healthy(); }, [this] { return describe(); }),
      keeper_(notifier_, store_size(),
              [this](const Model& model, const std::string& why) { not_kept(model, why); }),
      metrics_({loop, clock, events_, traffics_, memory_, domains_, models_, programs_,
                sessions_.spill(), stats_, reports_, service_, keeper_, journal_, notifier_,
                closers_}),
      pressure_(loop, memory_, models_.tiers(), sessions_.spill(), events_, options.thresholds),
      hang_timer_(loop, [this] { look_for_hangs(); }),
      wind_up_timer_(loop, [this] { see_if_wound_up(); }) {
  events_.listen([this](const Event& event) { journal_.write(event); });
  events_.listen([this](const Event& event) { manager_.hear(event); });
  events_.listen([this](const Event&) { reports_.event_told(); });
  turns_.on_owed([this] { next_turn_.start_once(0); });
  events_.set_names([this](uid_t user) { return reports_.name_now(user); });
  take_settings(options_);
  memory_.set_user_quota([this](uid_t user) { return quotas_.of(user).memory_bytes; });
  memory_.set_leaving([this](uid_t user) { return sessions_.leaving_bytes(user); });
  memory_.on_change([this] { pressure_.note(); });
  memory_.on_refusal([this](const Error& why, std::optional<uid_t> user) {
    const std::string whom = user ? " to " + events_.user_text(*user) : "";
    Event event = device_event(EventKind::kMemoryRefused, "memory is refused" + whom);
    event.owner = user;
    event.error = why.code;
    event.sentence = ipc::showable_sentence(why.message);
    if (!user) return events_.tell(std::move(event));
    events_.tell_refusal(std::move(event));
  });
  memory_.set_pinned([this] { return models_.tiers().pinned_bytes(); });
  memory_.set_evictor([this](uint64_t bytes) { return models_.tiers().make_room(bytes); });
  spare_workers_.on_change([this] {
    note_upgrade(spare_workers_);
    device_changed();
  });
  spare_loaders_.on_change([this] {
    note_upgrade(spare_loaders_);
    models_.refuse_waiting();
  });
}

Daemon::~Daemon() = default;

Status Daemon::start(Passed passed) {
  models_.take_back(keeper_.take_back(std::move(passed.kept)));
  const Listener::Events take{
      [this](Fd socket, const ipc::PeerCredentials& peer) { connected(std::move(socket), peer); },
      [this](Fd socket, const ipc::PeerCredentials& peer) {
        sessions_.turn_away(std::move(socket), peer, out_of_descriptors());
      }};
  if (passed.socket) {
    listener_ = Listener::adopt(loop_, *std::move(passed.socket), take);
  } else {
    DJINN_TRY(listener_,
              Listener::open(loop_, {options_.runtime_dir, options_.socket_group}, take));
  }
  spare_loaders_.start();
  spare_workers_.start();
  tell(EventKind::kDaemonStarted,
       fmt::format("version {} serves {}: {} a lane, {}", kVersion, whom_it_serves(options_),
                   count_text(options_.threads, "thread"), size_text(options_.memory_bytes)));
  service_.ready();
  manager_.start();
  const Status told = metrics_.serve(std::move(passed.metrics));
  if (!told) log("metrics are not served: {}", told.error().message);
  return {};
}

void Daemon::take_settings(Options written) {
  if (!written.user_mode) reports_.set_settings(settings_in_force(written, options_));
  const uint64_t total = memory_.total_bytes();
  quotas_.set(std::move(written.quotas), total, written.pin_quota.of(total));
}

// Of the configuration, what may change while djinnd runs.
void Daemon::take_up(const Config& config, Options written) {
  // Another limit is written perhaps, but not in effect before a restart.
  written = with_shares(std::move(written), memory_.total_bytes());
  memory_.set_session_quota(written.session_quota_bytes);
  models_.tiers().set_keep_alive(written.keep_alive_ms);
  pressure_.set(written.thresholds);
  sessions_.spill().set_idle_ms(written.spill_idle_ms);
  sessions_.spill().set_limit(written.spill_limit_bytes.value_or(0));
  options_.drain_timeout_ms = written.drain_timeout_ms;
  take_settings(std::move(written));
  for (const ConfigValue& value : config.values) {
    const auto now = options_.written.find(value.key);
    const bool is_same = now != options_.written.end() && now->second == value.text;
    if (!reloads(value.key) && !is_same) log("{} takes effect at the next start", value.key);
  }
  tell(EventKind::kConfigReloaded, "the configuration is reloaded");
  service_.ready();
}

Status Daemon::reload() {
  if (options_.user_mode) {
    return Error{ErrorCode::kUnsupported, "A djinnd of one user has no configuration."};
  }
  Config config = read_config(options_.root);
  service_.reloading();
  const auto written = config.is_valid() ? reread_(config) : Result<Options>(refused_config());
  if (!written) {
    for (const ConfigProblem& problem : config.problems) log_line(problem.text);
    tell(EventKind::kConfigRefused, "the configuration is as it was: the new one has errors");
    service_.ready();
    return written.error();
  }
  name_work_.run(
      [config = std::move(config)]() mutable {
        look_up_names(config);
        return std::move(config);
      },
      [this](const Config& named) {
        for (const ConfigProblem& problem : named.problems) log_line(problem.text);
        auto complete = reread_(named);
        DJINN_ASSERT(complete.ok());  // as it was without the names
        take_up(named, *std::move(complete));
      });
  return {};
}

void Daemon::set_draining(bool draining) {
  if (std::exchange(draining_, draining) == draining) return;
  sessions_.set_draining(draining);
  models_.set_draining(draining);
  reports_.set_draining(draining);
  tell(draining ? EventKind::kDraining : EventKind::kResumed,
       draining ? "draining: no new session, no new model" : "resumed");
  service_.changed();
}

ipc::Collected Daemon::collect_garbage() {
  const uint64_t before = memory_.granted_bytes();
  ipc::Collected collected;
  collected.programs = programs_.collect();
  collected.workers =
      domains_.retire_idle([this](DomainId domain) { return sessions_.in_use(domain); });
  collected.bytes = before - std::min(before, memory_.granted_bytes());
  return collected;
}

void Daemon::wind_up() {
  const uint64_t drain_ms = options_.drain_timeout_ms.value_or(0);
  if (wind_up_until_ns_ || drain_ms == 0 || !sessions_.any_runs()) return loop_.stop();
  wind_up_until_ns_ = clock_.monotonic_ns() + drain_ms * 1'000'000;
  set_draining(true);
  see_if_wound_up();
}

void Daemon::see_if_wound_up() {
  if (!sessions_.any_runs() || clock_.monotonic_ns() >= *wind_up_until_ns_) return loop_.stop();
  service_.extend_timeout(kExtendMs);
  wind_up_timer_.start_once(kWindUpLookMs);
}

void Daemon::stop() {
  tell(EventKind::kDaemonStopping, "stopping");
  service_.stopping();
  metrics_.stop();
  listener_.reset();
  next_turn_.stop();
  hang_timer_.stop();
  wind_up_timer_.stop();
  sessions_.end_all(stopping());
  manager_.stop();
}

void Daemon::connected(Fd socket, const ipc::PeerCredentials& peer) {
  const Status may_wait = check_may_wait(socket, peer.uid);
  if (!may_wait) {
    const Turns::Bill bill(turns_, peer.uid);
    return sessions_.turn_away(std::move(socket), peer, may_wait.error());
  }
  // In their turn: who comes next in the queue of connections may be another user.
  ++connecting_;
  turns_.owe(peer.uid, [this, peer, shared = std::make_shared<Fd>(std::move(socket))] {
    --connecting_;
    const Status served = check_serves(peer.uid);
    if (!served) return sessions_.turn_away(std::move(*shared), peer, served.error());
    sessions_.connected(std::move(*shared), peer);
    if (!hang_timer_.active()) hang_timer_.start_once(options_.hang_timeout_ms);
    service_.changed();
  });
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

Status Daemon::check_may_wait(const Fd& socket, uid_t user) const {
  DJINN_CHECK(check_descriptors_left(socket, connecting_ * kDescriptorsOfSession));
  if (turns_.owed_to(user) < limits::kSessionsPerUser) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("More than {} connections and answers of one user wait. Ask for less "
                           "at once.",
                           limits::kSessionsPerUser)};
}

// One that nobody is noted for is made by a timer: libuv's fire after its checks, with no look at
// descriptors in between, and the next rest may end before the last one's timer.
void Daemon::take_turn() {
  const std::optional<uint64_t> next_ns = turns_.take();
  if (next_ns) next_turn_.start_once(*next_ns / 1'000'000 + 1);
}

void Daemon::session_left(SessionId session) {
  const Session* const left = sessions_.find(session);
  if (left != nullptr) programs_.session_left(session, left->domain);
  models_.session_left(session);
  reports_.session_left(session);
  service_.changed();
}

void Daemon::models_changed() {
  pressure_.note();
  keeper_.keep(models_.table().all(), models_.returning());
  service_.changed();
}

void Daemon::not_kept(const Model& model, const std::string& why) {
  Event event{EventKind::kModelNotKept,
              fmt::format("model {} would not outlive a restart: {}", text_of(model.id), why),
              model.owner()};
  event.model = model.id;
  event.bytes = model.bytes;
  events_.tell(std::move(event));
}

Service::Line Daemon::describe() const {
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
      draining_ ? fmt::format("Draining, {} left", count_text(sessions_.count(), "session"))
                : count_text(sessions_.all().size(), "session");
  return {
      fmt::format("{}, {} ({}), {} of {} granted", sessions, count_text(models.size(), "model"),
                  progress, size_text(memory_.granted_bytes()), size_text(memory_.total_bytes())),
      loading > 0};
}

// While nothing runs, djinnd sleeps for a whole timeout at a time.
void Daemon::look_for_hangs() {
  bool busy = false;
  for (const auto& [domain, worker] : domains_.all()) {
    const LaneActivity lane = sessions_.activity_of(domain);
    busy |= worker->look(lane);
  }
  if (sessions_.all().empty()) return;
  const uint64_t often_ms = std::max<uint64_t>(20, options_.hang_timeout_ms / 8);
  hang_timer_.start_once(busy ? often_ms : options_.hang_timeout_ms);
}

bool Daemon::is_healthy() {
  const Status books = memory_.check();
  if (!books) {
    tell(EventKind::kWatchdogWithheld, "the watchdog is not answered: " + books.error().message);
  }
  return books.ok();
}

void Daemon::tell(EventKind kind, std::string text) {
  events_.tell({kind, std::move(text), {}});
}

// Said once: it takes a restart, and then another djinnd is there.
void Daemon::note_upgrade(const SparePool& pool) {
  if (!pool.has_other_build() || std::exchange(upgrade_told_, true)) return;
  tell(EventKind::kUpgradePending,
       fmt::format("djinnd was upgraded while version {} of it ran, which cannot use what is "
                   "installed now: restart it",
                   kVersion));
}

// A device whose workers do not start is lost for as long.
void Daemon::device_changed() {
  const bool lost = spare_workers_.fails();
  if (std::exchange(device_lost_, lost) != lost) {
    events_.tell(device_event(
        lost ? EventKind::kDeviceLost : EventKind::kDeviceBack,
        lost ? "device cpu:0 is lost: its workers do not start" : "device cpu:0 is back"));
  }
  if (!lost) return;
  sessions_.refuse_waiting(spare_workers_.failure());
  if (spare_workers_.has_other_build()) sessions_.end_waiting(spare_workers_.failure());
}

// Order: a program finds its model, and a session the programs that its open runs name.
void Daemon::worker_ready(DomainId domain) {
  models_.worker_ready(domain);
  programs_.worker_ready(domain);
  sessions_.worker_ready(domain);
}

bool Daemon::worker_died(DomainId domain, const WorkerDeath& death) {
  const bool progressed = sessions_.worker_died(domain, death);
  models_.worker_died(domain, death);
  programs_.worker_died(domain, death);
  stats_.worker_died(domain);
  if (spare_workers_.has_other_build()) sessions_.end_waiting(spare_workers_.failure());
  return progressed;
}

void Daemon::worker_said(DomainId domain, const ipc::WorkerEvent& event) {
  struct Route {
    Daemon& to;
    DomainId domain;
    void operator()(const ipc::WorkerReady&) const {}
    void operator()(const ipc::Attached& e) const { to.sessions_.hear(domain, e); }
    void operator()(const ipc::Detached& e) const { to.sessions_.hear(domain, e); }
    void operator()(const ipc::ModelAdded& e) const { to.models_.hear(domain, e); }
    void operator()(const ipc::ModelDropped& e) const { to.models_.tiers().hear(domain, e); }
    void operator()(const ipc::ModelParked& e) const { to.models_.tiers().hear(domain, e); }
    void operator()(const ipc::ModelWanted& e) const { to.models_.tiers().hear(domain, e); }
    void operator()(const ipc::ProgramAdded& e) const { to.programs_.hear(domain, e); }
    void operator()(const ipc::ProgramRefused& e) const { to.programs_.hear(domain, e); }
    void operator()(const ipc::SequenceAdded& e) const { to.sessions_.hear(domain, e); }
    void operator()(const ipc::SequenceDropped& e) const { to.sessions_.hear(domain, e); }
    void operator()(const ipc::SequenceSpilled& e) const {
      const bool honest = to.sessions_.hear(domain, e);
      if (!honest) to.domains_.find(domain)->kill("spills what it was not asked to");
    }
    void operator()(const ipc::SequenceRestored& e) const { to.sessions_.hear(domain, e); }
    void operator()(const ipc::GrantRequest& e) const { to.sessions_.hear(domain, e); }
    void operator()(const ipc::GrantReturn& e) const {
      const bool honest = to.sessions_.hear(domain, e);
      if (!honest) to.domains_.find(domain)->kill("gives back what it was not given");
    }
    void operator()(const ipc::SessionBroken& e) const { to.sessions_.hear(domain, e); }
    void operator()(const ipc::WorkerStats& e) const { to.stats_.hear(domain, e); }
    void operator()(const ipc::LaneAwake&) const {}
  };
  const Turns::Bill bill(turns_, domain);
  std::visit(Route{*this, domain}, event.body);
}

// Threads that spin for long take the cores from everybody else (libgomp reads this when it is
// loaded, so it must be in the environment). Where they are bound to cores, as some hosts' settings
// say, those of all users would share the same ones, and a confined worker may not bind them.
ChildProgram Daemon::worker_program() {
  ChildProgram program{options_.worker,
                       {"--threads", std::to_string(options_.threads), "--memory-bytes",
                        std::to_string(options_.memory_bytes)},
                       {"GOMP_SPINCOUNT=5000", "OMP_DYNAMIC=false", "OMP_PROC_BIND=false",
                        "OMP_NUM_THREADS=" + std::to_string(options_.threads)}};
  const bool first = workers_started_++ == 0;
  if (options_.test_fault_at > 0 && (first || options_.test_fault_every)) {
    program.arguments.insert(program.arguments.end(),
                             {"--fault-at", std::to_string(options_.test_fault_at)});
  }
  if (options_.test_pal_fault_at > 0 && first) {
    program.arguments.insert(program.arguments.end(),
                             {"--pal-fault-at", std::to_string(options_.test_pal_fault_at)});
  }
  return program;
}

ChildProgram Daemon::loader_program() const {
  return {options_.loader, {}, {}, true};
}

}  // namespace djinn::daemon
