// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/simulation.h"

#include <dirent.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "daemon/djinnd/daemon.h"
#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/simulation/client.h"
#include "daemon/djinnd/simulation/daemon_for_tests.h"
#include "daemon/djinnd/simulation/files.h"
#include "daemon/djinnd/simulation/invariants.h"
#include "daemon/djinnd/simulation/loader.h"
#include "daemon/djinnd/simulation/worker.h"
#include "ipc/messages.h"
#include "kernel/base/assert.h"
#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon::simulation {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kStoreMax = 40;    // a few models
constexpr uint64_t kWindUpMs = 2000;  // for who is busy with other things
constexpr uint64_t kHangTimeoutMs = 10'000;
// The watchdog looks once in a timeout while nothing runs, and patient work has six timeouts
// (HangWatch), each as much longer as the worker lacks a processor (OwnTime).
constexpr uint64_t kHangIsSeenMs = 8 * Worker::kHeldUpOneIn * kHangTimeoutMs;
constexpr uint64_t kEventsMax = 60'000;  // of a phase in which nothing new begins
constexpr size_t kLinesTold = 60;
constexpr uid_t kUsers[] = {0, 1001, 1002, 1003};
constexpr DeviceId kFakeDevice{DeviceKind::kFake, 0};

uint64_t seed_under_way = 0;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char path[] = "/tmp/djinnd-simulation-XXXXXX";
    DJINN_ASSERT(::mkdtemp(path) != nullptr);
    path_ = path;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Options some_options(Machine& machine, const std::string& directory) {
  Options options;
  options.root = directory;
  options.socket_group = "djinn";
  options.admin_group = "no-such-group";
  options.threads = 2;
  options.memory_bytes = machine.between(12, 64) * kMiB;
  options.session_quota_bytes = machine.between(4, 16) * kMiB;
  if (!machine.one_in(4)) options.test_device_bytes = machine.between(8, 48) * kMiB;
  options.worker = "worker";
  options.test_device_worker = "worker of fake:0";
  options.loader = "loader";
  options.hang_timeout_ms = machine.one_in(2) ? 500 : kHangTimeoutMs;
  options.keep_alive_ms = machine.one_in(4) ? 0 : machine.below(120'000);
  options.thresholds.idle_percent = static_cast<uint32_t>(machine.between(30, 90));
  options.thresholds.all_percent =
      static_cast<uint32_t>(machine.between(options.thresholds.idle_percent, 98));
  // The directory cannot be made below a file, so spilling fails.
  options.spill_directory = machine.one_in(8) ? "/dev/null/spill" : directory;
  options.drain_timeout_ms = machine.one_in(4) ? 0 : machine.below(5000);
  options.spill_idle_ms = machine.between(1, 3000);
  if (machine.one_in(3)) options.spill_limit_bytes = machine.between(1, 4) * kMiB;
  for (const uid_t user : {1001U, 1002U}) {
    if (!machine.one_in(2)) continue;
    Quota quota;
    quota.memory = Amount{machine.between(4, 24) * kMiB, false};
    quota.pins = Amount{machine.between(0, 8) * kMiB, false};
    if (machine.one_in(2)) quota.sessions = static_cast<uint32_t>(machine.between(1, 3));
    options.quotas.push_back({false, fmt::format("user{}", user), user, quota});
  }
  return options;
}

class Simulation {
 public:
  Simulation(uint64_t seed, Mistake mistake)
      : machine_(seed, mistake),
        options_(some_options(machine_, directory_.path())),
        files_(machine_),
        seed_(seed) {
    machine_.processes().set_programs(world_,
                                      [this](const std::string& path, pid_t pid, Fd channel) {
                                        return make_child(path, pid, std::move(channel));
                                      });
    for (const uid_t user : kUsers) {
      const uint64_t count = user == 0 ? 1 : machine_.between(1, 3);
      for (uint64_t i = 0; i < count; ++i) {
        clients_.push_back(std::make_unique<Client>(machine_, world_, files_, known_, user,
                                                    fmt::format("client {} of {}", i, user)));
      }
    }
    if (!machine_.one_in(4)) machine_.systemd().listen(machine_.between(0, kStoreMax));
  }

  ~Simulation() {
    machine_.set_faults(false);
    clients_.clear();
    observer_.reset();
    if (daemon_ != nullptr) end_daemon();
  }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  Outcome run() {
    storm();
    if (!failure_) calm();
    if (!failure_) leave();
    if (!failure_) empty();
    return {0, machine_.events(), machine_.hash(), failure_, machine_.lines()};
  }

 private:
  std::unique_ptr<Child> make_child(const std::string& path, pid_t pid, Fd channel) {
    if (path == options_.loader) {
      return std::make_unique<Loader>(machine_, world_, files_, pid, std::move(channel));
    }
    const DeviceId device = path == options_.worker ? kHostDevice : kFakeDevice;
    return std::make_unique<Worker>(machine_, world_, device, pid, std::move(channel));
  }

  Options changed_options() const {
    Options changed = options_;
    changed.session_quota_bytes = options_.session_quota_bytes / 2 + reloads_ * kMiB;
    for (NamedQuota& named : changed.quotas) {
      named.quota.memory = Amount{(2 + reloads_ * 3) * kMiB, false};
    }
    return changed;
  }

  // --- djinnd's own life

  void start_daemon() {
    loop_ = std::make_unique<Loop>();
    const auto reload_options = [this](const Config&) -> Result<Options> {
      return changed_options();
    };
    daemon_ = std::make_unique<Daemon>(*loop_, machine_, options_, reload_options,
                                       seed_ + (starts_++ << 32));
    std::vector<Owner> owners;
    for (const uid_t user : kUsers) owners.push_back(Owner::of_user(user));
    invariants_ = std::make_unique<Invariants>(machine_, *daemon_, std::move(owners),
                                               machine_.systemd().models());
    ActivationFds passed;
    passed.kept = machine_.systemd().pass();
    const auto started = daemon_->start(std::move(passed));
    DJINN_ASSERT(started.ok());
    fail(invariants_->not_taken_back());
  }

  // Ends djinnd as main() does. Its users' threads end with it. It has killed its children, or they
  // are dead.
  void end_daemon() {
    const Sessions& sessions = DaemonForTests::sessions(*daemon_);
    for (const auto& client : clients_) {
      const Session* const session = sessions.find(client->session());
      const bool is_here = session != nullptr && session->phase != SessionPhase::kLeaving;
      if (is_here) client->expect_end();
    }
    machine_.processes().hurry();
    daemon_->stop();
    invariants_.reset();
    daemon_.reset();
    if (const size_t alive = machine_.processes().alive(); alive > 0) {
      fail(fmt::format("{} children outlive djinnd", alive));
    }
    forget_daemon();
  }

  // Ends djinnd as a signal does: what goes on may take its time, up to a limit.
  void wind_up() {
    const uint64_t until_ms = machine_.now_ms() + *options_.drain_timeout_ms + kWindUpMs;
    daemon_->wind_up();
    if (machine_.one_in(4)) daemon_->wind_up();  // somebody is in a hurry
    while (!machine_.is_stopped(loop_->raw()) && !failure_) {
      if (machine_.now_ms() >= until_ms) return fail("djinnd winds up, and does not end");
      step(until_ms);
    }
  }

  // djinnd is dead at once, and the work of its threads is not done.
  void kill_daemon() {
    machine_.systemd().set_deaf(true);
    machine_.forget_work();
    machine_.processes().hurry();
    forget_daemon();
    machine_.systemd().set_deaf(false);
  }

  void forget_daemon() {
    invariants_.reset();
    daemon_.reset();
    machine_.processes().forget();
    machine_.forget_work();
    loop_.reset();
    machine_.memory().keep_only(machine_.systemd().extents());
  }

  void restart() {
    const bool is_killed = machine_.one_in(2);
    machine_.tell("djinnd is {}", is_killed ? "killed" : "to end");
    if (!is_killed) wind_up();
    if (failure_) return;
    is_killed ? kill_daemon() : end_daemon();
    fail(machine_.systemd().check());
    if (machine_.one_in(4)) machine_.systemd().listen(machine_.between(0, kStoreMax));
    if (machine_.one_in(4)) options_.memory_bytes = machine_.between(12, 64) * kMiB;
    if (machine_.one_in(4)) options_.test_device_bytes = machine_.between(0, 48) * kMiB;
    start_daemon();
    machine_.tell("djinnd starts with {} models", DaemonForTests::table(*daemon_).size());
  }

  void fail(std::optional<std::string> what) {
    if (!failure_ && what) failure_ = std::move(what);
  }

  // Makes one event happen and checks everything. Gives whether something happened and all is well.
  bool step(uint64_t until_ms) {
    if (failure_) return false;
    const bool happened = machine_.step(until_ms);
    if (machine_.mistake() == Mistake::kLeaseOutlives) keep_a_lease();
    if (machine_.mistake() == Mistake::kDeviceIsMixedUp) mix_up_a_device();
    if (machine_.mistake() == Mistake::kDeathIsAlwaysNew) note_deaths(machine_.monotonic_ns());
    if (machine_.mistake() == Mistake::kDeathIsAlwaysOld) note_deaths(0);
    fail(invariants_->check());
    fail(misplaced());
    for (const auto& client : clients_) fail(client->wrong());
    return happened && !failure_;
  }

  using Finding = std::optional<std::string>;

  // Finds a session that is on another device than its client asked for.
  Finding misplaced() const {
    for (const auto& client : clients_) {
      const Session* const session = DaemonForTests::sessions(*daemon_).find(client->session());
      if (session == nullptr) continue;
      const std::string there = text_of(session->device);
      if (there == client->device()) continue;
      if (client->device().empty() && session->device == kHostDevice) continue;
      return fmt::format("{} asked for device '{}', and is on {}", client->name(), client->device(),
                         there);
    }
    return std::nullopt;
  }

  // Lets time pass until `find` finds nothing, for at most this long. Nobody begins anything new,
  // so events come to an end.
  void pass(uint64_t ms_max, const std::function<Finding()>& find) {
    const uint64_t until_ms = machine_.now_ms() + ms_max;
    uint64_t events = 0;
    while (find() && machine_.now_ms() < until_ms && step(until_ms)) {
      if (++events >= kEventsMax) return fail("it does not come to rest");
    }
    fail(find());
  }

  void storm() {
    start_daemon();
    for (const auto& client : clients_) client->begin();
    const uint64_t events = machine_.between(100, 2500);
    while (machine_.events() < events && !failure_) {
      step(machine_.now_ms() + 1000);
      if (machine_.one_in(800)) reload();
      if (machine_.one_in(1500)) lose_or_find_a_device();
      if (machine_.one_in(2000)) restart();
    }
  }

  void lose_or_find_a_device() {
    const DeviceId device = machine_.one_in(2) ? kHostDevice : kFakeDevice;
    const bool is_lost = !machine_.is_lost(device);
    machine_.tell("device {} is {}", text_of(device), is_lost ? "lost" : "back");
    machine_.set_lost(device, is_lost);
  }

  void reload() {
    machine_.tell("the configuration changes");
    reloads_ = machine_.below(4);
    [[maybe_unused]] const Status begun = daemon_->reload();
  }

  void calm() {
    machine_.tell("--- calm");
    machine_.set_faults(false);
    for (const DeviceId device : {kHostDevice, kFakeDevice}) machine_.set_lost(device, false);
    files_.answer();
    for (const auto& client : clients_) client->be_calm();
    observer_ = std::make_unique<Client>(machine_, world_, files_, known_, 0, "observer");
    observer_->observe();
    pass(400'000, [this] { return who_waits(); });
    DaemonForTests::models_changed(*daemon_);
    pass(10'000, [this] { return invariants_->not_kept(); });
  }

  Finding who_waits() const {
    for (const auto& client : clients_) {
      for (const std::string& what : client->waits_for()) {
        return fmt::format("{} waits for the answer to {}, and nobody will give it", client->name(),
                           what);
      }
    }
    return observer_waits();
  }

  Finding observer_waits() const {
    for (const std::string& what : observer_->waits_for()) {
      return fmt::format("the observer waits for the answer to {}", what);
    }
    return std::nullopt;
  }

  Finding moving_model() const {
    for (const auto& [id, model] : DaemonForTests::table(*daemon_).all()) {
      const bool rests = model.phase == ModelPhase::kResident || model.phase == ModelPhase::kOnDisk;
      if (!rests) return fmt::format("model {} does not come to rest", text_of(id));
    }
    return std::nullopt;
  }

  void leave() {
    machine_.tell("--- all leave");
    for (const auto& client : clients_) client->go();
    pass(200'000, [this] { return invariants_->left_behind(); });
  }

  void empty() {
    machine_.tell("--- all goes");
    const auto answered = [this] { return observer_waits(); };
    // Unloading a model that moves is refused, so it is asked for again when it has come to rest:
    // what leaves waits for a worker that hangs until the watchdog has seen that.
    for (int round = 0; round < 10 && !failure_; ++round) {
      for (const auto& [id, model] : DaemonForTests::table(*daemon_).all()) {
        observer_->ask_for(ipc::UnloadModel{id});
      }
      pass(kHangIsSeenMs, answered);
      pass(kHangIsSeenMs, [this] { return moving_model(); });
    }
    observer_->ask_for(ipc::CollectGarbage{});
    pass(10'000, answered);
    observer_->go();
    pass(100'000, [this] { return invariants_->still_held(); });
  }

  // Makes the mistake that a lease outlives its session.
  void keep_a_lease() {
    for (auto& [id, model] : DaemonForTests::table(*daemon_).all()) {
      for (const auto& [session, lease] : *model.leases) leases_seen_[id] = {session, lease};
      const auto seen = leases_seen_.find(id);
      if (seen == leases_seen_.end() || !machine_.one_in(4)) continue;
      StateForTests::value_of(model.leases).insert(seen->second);
    }
  }

  // Makes the mistake that a model is taken for one of another device.
  void mix_up_a_device() {
    if (DaemonForTests::devices(*daemon_).all().size() < 2) return;
    for (auto& [id, model] : DaemonForTests::table(*daemon_).all()) {
      if (model.phase != ModelPhase::kResident || !machine_.one_in(64)) continue;
      model.key().device = model.device() == kHostDevice ? kFakeDevice : kHostDevice;
    }
  }

  // Makes the mistake that those whose workers have died lost them then.
  void note_deaths(uint64_t lost_ns) {
    for (const auto& [id, session] : DaemonForTests::sessions(*daemon_).all()) {
      if (!session->attached) session->lost_worker_ns = lost_ns;
    }
  }

  const TemporaryDirectory directory_;
  Machine machine_;
  Options options_;
  Loop world_;                  // of clients and children
  std::unique_ptr<Loop> loop_;  // djinnd's
  Files files_;
  const uint64_t seed_;
  uint64_t starts_ = 0;
  Known known_;
  uint64_t reloads_ = 0;
  std::vector<std::unique_ptr<Client>> clients_;
  std::unique_ptr<Client> observer_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<Invariants> invariants_;
  std::map<ModelId, std::pair<SessionId, ModelLease>> leases_seen_;
  std::optional<std::string> failure_;
};

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

std::string again(uint64_t seed) {
  return fmt::format("again: djinnd-simulation --seed {}\n", seed);
}

}  // namespace

Outcome simulate(uint64_t seed, Mistake mistake) {
  seed_under_way = seed;
  const size_t descriptors = open_descriptors();
  Outcome outcome = Simulation(seed, mistake).run();
  outcome.seed = seed;
  const size_t left = open_descriptors();
  if (!outcome.failure && left > descriptors) {
    outcome.failure = fmt::format("{} descriptors are left open", left - descriptors);
  }
  return outcome;
}

std::string outcome_text(const Outcome& outcome) {
  std::string text;
  if (!outcome.failure) return text;
  const std::vector<std::string>& lines = outcome.lines;
  const size_t skipped = lines.size() - std::min(lines.size(), kLinesTold);
  for (size_t i = skipped; i < lines.size(); ++i) text += lines[i] + "\n";
  return text + fmt::format("seed {}: {}\n", outcome.seed, *outcome.failure) + again(outcome.seed);
}

void tell_on_abort() {
  ::signal(SIGABRT, [](int) {
    const Machine* const machine = Machine::current_or_null();
    std::string text;
    if (machine != nullptr) {
      for (const std::string& line : machine->lines()) text += line + "\n";
    }
    text += again(seed_under_way);
    [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, text.data(), text.size());
    ::signal(SIGABRT, SIG_DFL);
  });
}

}  // namespace djinn::daemon::simulation
