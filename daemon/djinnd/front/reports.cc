// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/reports.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "daemon/djinnd/host/config.h"
#include "daemon/djinnd/host/version.h"
#include "daemon/djinnd/loop/proc_files.h"
#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::daemon {
namespace {

// Since Linux 6.2 the directory's size says how many there are. Before that, the entries of
// /proc/self/fd are counted, without ".", ".." and the descriptor that reads it.
uint32_t count_descriptors() {
  struct stat info {};
  if (::stat("/proc/self/fd", &info) == 0 && info.st_size > 0) {
    return static_cast<uint32_t>(info.st_size);
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir("/proc/self/fd"), &::closedir);
  uint32_t count = 0;
  while (list && ::readdir(list.get()) != nullptr) ++count;
  return count > 3 ? count - 3 : 0;
}

// A status has a page of workers and a page of users, which must fit one message together.
constexpr size_t kStatusPage = limits::kListPage / 2;
static_assert(2 * kStatusPage <= limits::kListPage);

ipc::SessionState state_of(const Session& session, bool running, ipc::SessionWait wait) {
  if (session.phase == SessionPhase::kLeaving) return ipc::SessionState::kDraining;
  if (session.phase == SessionPhase::kLive && session.has_memory() && !session.attached) {
    return ipc::SessionState::kLost;
  }
  if (wait != ipc::SessionWait::kNone) return ipc::SessionState::kWaiting;
  return running ? ipc::SessionState::kActive : ipc::SessionState::kIdle;
}

ipc::ModelState state_of(const Model& model) {
  switch (model.phase) {
    case ModelPhase::kLoading:
      return ipc::ModelState::kLoading;
    case ModelPhase::kResident:
      return ipc::ModelState::kResident;
    case ModelPhase::kEvicting:
    case ModelPhase::kUnloading:
      return ipc::ModelState::kEvicting;
    case ModelPhase::kOnDisk:
      return model.lost ? ipc::ModelState::kFailed : ipc::ModelState::kDisk;
  }
  return ipc::ModelState::kFailed;
}

// Gives an empty progress if the session has no memory, or if it cannot be read.
gc::Progress progress_of(const Session& session) {
  if (!session.has_memory()) return {};
  auto progress = session.memory.progress();
  if (!progress.ok()) return {};
  return *std::move(progress);
}

// A worker may write false counts, but only for sessions of its own user.
ipc::SessionCounts counts_of(const Session& session, const gc::RunCounts& runs) {
  ipc::SessionCounts counts;
  counts.tier = static_cast<ipc::RunTier>(std::min<uint64_t>(runs.last_tier, ipc::kRunTiers));
  counts.graphs = runs.graphs;
  counts.programs = runs.programs;
  counts.generations = runs.generations;
  counts.failed = runs.failed;
  counts.tokens = runs.tokens;
  counts.plan_misses = runs.plan_misses;
  const Traffic control = session.channel ? session.channel->traffic() : Traffic{};
  counts.bytes_in = runs.bytes_in + control.received_bytes + session.payload_bytes_in;
  counts.bytes_out = runs.bytes_out + control.sent_bytes;
  return counts;
}

// Tells whether the setting belongs to a user's or a group's section, or to a principal. Such
// settings are for administrators.
bool names_somebody(const ipc::SettingReport& setting) {
  return setting.key.starts_with("user.") || setting.key.starts_with("group.") ||
         is_mapping(setting.key);
}

// The largest number means that there is no limit.
uint64_t sum_of_limits(uint64_t a, uint64_t b) {
  return checked_add(a, b).value_or(UINT64_MAX);
}

// Gives the page of a list that begins at item `first`.
template <typename Item>
std::vector<Item> page_of(std::vector<Item> items, uint32_t first,
                          size_t page = limits::kListPage) {
  const size_t begin = std::min<size_t>(first, items.size());
  const size_t end = std::min<size_t>(begin + page, items.size());
  DJINN_ASSERT(begin <= end && end - begin <= page);
  return {std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(begin)),
          std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(end))};
}

}  // namespace

Reports::Reports(Loop& loop, const Clock& clock, const Devices& devices, const Quotas& quotas,
                 Domains& domains, Models& models, Programs& programs, Sessions& sessions,
                 Events& events, StatsRounds& stats, const Gpus& gpus,
                 const DeferredClose& deferred_close, Turns& turns, const Principals& principals)
    : loop_(loop),
      clock_(clock),
      devices_(devices),
      quotas_(quotas),
      domains_(domains),
      models_(models),
      programs_(programs),
      sessions_(sessions),
      events_(events),
      stats_(stats),
      gpus_(gpus),
      deferred_close_(deferred_close),
      turns_(turns),
      started_wall_ns_(clock.wall_ns()),
      cpu_name_(name_of_cpu().substr(0, limits::kNameBytes)),
      names_(loop, clock, principals),
      follow_(loop, [this] { answer_followers(); }) {}

// --- status

void Reports::status(const Waiter& waiter, const Caller& caller, const ipc::GetStatus& request) {
  const auto seen = [caller](Owner domain) { return caller.may_steer(domain); };
  const auto answer = [this, waiter, caller, request] {
    when_named([this, waiter, caller, request] {
      sessions_.owe(waiter, [this, waiter, caller, request]() -> ipc::DaemonReply {
        return {waiter.number, make_status(caller, request)};
      });
    });
  };
  stats_.ask(seen, [this, answer, user = caller.user] { turns_.owe(user, answer); });
}

std::string Reports::name_now(Owner user) {
  names_.want(user);
  return names_.of(user);
}

// Waits for the names of all users, whether the caller sees them or not: there are few, and each is
// looked up once.
void Reports::when_named(std::function<void()> then) {
  names_.when_known(named_users(), std::move(then));
}

std::set<Owner> Reports::named_users() const {
  std::set<Owner> users;
  for (const auto& [id, session] : sessions_.all()) users.insert(session->domain);
  for (const auto& [id, model] : models_.table().all()) {
    users.insert(model.owner());
    users.insert(model.pins->begin(), model.pins->end());
    for (const auto& [user, name] : model.names) users.insert(user);
  }
  for (const auto& [id, program] : programs_.table().all()) users.insert(program.worker.owner);
  for (const auto& [key, worker] : domains_.all()) users.insert(key.owner);
  return users;
}

ipc::StatusReport Reports::make_status(const Caller& caller, const ipc::GetStatus& request) const {
  ipc::StatusReport report;
  report.version = kVersion;
  report.started_wall_ns = started_wall_ns_;
  report.memory_total_bytes = devices_.total_bytes();
  report.memory_granted_bytes = devices_.granted_bytes();
  report.memory_models_bytes = devices_.held_by({vmu::HolderKind::kModel, vmu::HolderKind::kLoad});
  report.memory_sessions_bytes = devices_.held_by({vmu::HolderKind::kSession});
  report.memory_lanes_bytes = devices_.held_by({vmu::HolderKind::kLane, vmu::HolderKind::kHeap});
  report.sessions = static_cast<uint32_t>(sessions_.all().size());
  report.models = static_cast<uint32_t>(models_.table().size());
  report.programs = static_cast<uint32_t>(programs_.table().size());
  report.descriptors = count_descriptors();
  report.descriptors_closing = static_cast<uint32_t>(deferred_close_.waiting());
  report.bytes_read = models_.bytes_read();
  report.buffered_reads = models_.buffered_reads();
  report.compared_opens = models_.compared_opens();
  std::vector<ipc::WorkerReport> workers;
  for (const auto& [key, worker] : domains_.all()) {
    if (!caller.may_steer(key.owner) || worker->absent()) continue;
    workers.push_back(worker->report());
    workers.back().owner = names_.of(key.owner);
  }
  report.workers_total = static_cast<uint32_t>(workers.size());
  report.workers = page_of(std::move(workers), request.first_worker, kStatusPage);
  report.draining = sessions_.draining();
  report.data_sessions = sessions_.count();
  report.quota = quota_of(caller.user, caller.admin);
  if (request.first_worker == 0) report.settings = settings_;
  report.spill_fault = sessions_.sequences().spill().fault();
  report.config_root = config_root_;
  if (!caller.admin) {
    std::erase_if(report.settings, names_somebody);
    return report;
  }
  std::vector<ipc::UserReport> users;
  for (const Owner user : users_here()) {
    // Of other users only their connections tell whether they are administrators.
    const bool is_admin = user == caller.user || user == kAdministrators;
    users.push_back({names_.of(user), quota_of(user, is_admin)});
  }
  report.users_total = static_cast<uint32_t>(users.size());
  report.users = page_of(std::move(users), request.first_worker, kStatusPage);
  return report;
}

// Gives the users who hold memory, a session or a model.
std::set<Owner> Reports::users_here() const {
  std::set<Owner> users;
  for (const auto& [id, session] : sessions_.all()) {
    if (!session->observer) users.insert(session->domain);
  }
  for (const auto& [id, model] : models_.table().all()) {
    users.insert(model.owner());
    users.insert(model.pins->begin(), model.pins->end());
  }
  for (const auto& [key, worker] : domains_.all()) users.insert(key.owner);
  return users;
}

// Adds up all devices. The quotas of pins and models do not bind administrators (pins.h, places.h).
ipc::QuotaReport Reports::quota_of(Owner user, bool is_admin) const {
  ipc::QuotaReport report;
  report.pinned_max_bytes = is_admin ? UINT64_MAX : 0;
  for (const auto& memory : devices_.all()) {
    const QuotaInForce quota = quotas_.of(user, memory->total_bytes());
    report.is_own = quota.is_own;
    report.memory_bytes += memory->held_by_user(user);
    report.memory_max_bytes = sum_of_limits(report.memory_max_bytes, quota.memory_bytes);
    report.pinned_bytes += models_.pins().bytes_of(user, memory->device());
    report.pinned_max_bytes = sum_of_limits(report.pinned_max_bytes, quota.pin_bytes);
  }
  report.sessions = sessions_.count(user);
  report.sessions_max = quotas_.sessions_of(user);
  report.models = models_.places().count(user);
  report.models_max = is_admin ? limits::kModels : quotas_.models_of(user);
  return report;
}

// --- lists

template <typename List, typename Item>
void Reports::answer_page(const Waiter& waiter, std::vector<Item> List::*items, uint32_t first,
                          std::function<std::vector<Item>()> make) {
  when_named([this, waiter, items, first, make = std::move(make)] {
    sessions_.owe(waiter, [number = waiter.number, items, first, make]() -> ipc::DaemonReply {
      std::vector<Item> reports = make();
      List list;
      list.total = static_cast<uint32_t>(reports.size());
      list.*items = page_of(std::move(reports), first);
      return {number, std::move(list)};
    });
  });
}

void Reports::sessions(const Waiter& waiter, const Caller& caller,
                       const ipc::ListSessions& request) {
  answer_page<ipc::SessionList, ipc::SessionReport>(
      waiter, &ipc::SessionList::sessions, request.first,
      [this, caller] { return sessions_seen_by(caller); });
}

std::vector<ipc::SessionReport> Reports::sessions_seen_by(const Caller& caller) {
  std::vector<ipc::SessionReport> reports;
  for (const auto& [id, session] : sessions_.all()) {
    const bool seen = caller.may_steer(session->domain);
    if (seen && session->phase != SessionPhase::kGreeting) reports.push_back(report_of(*session));
  }
  return reports;
}

ipc::SessionReport Reports::report_of(const Session& session) {
  ipc::SessionReport report;
  report.session = session.id;
  report.client_name = session.client_name;
  report.device = text_of(session.device);
  report.owner = names_.of(session.domain);
  report.pid = static_cast<uint32_t>(session.pid);
  report.started_wall_ns = session.started_wall_ns;
  report.granted_bytes = devices_.of(session.device).held_by(Memory::of_session(session.id));
  report.models = models_.leases_of(session.id);
  report.sequences = static_cast<uint32_t>(session.sequences.size());
  report.shared_bytes = models_.bytes_shared_by(session.id);
  const gc::Progress progress = progress_of(session);
  report.steps = progress.commit;
  report.counts = counts_of(session, progress.counts);
  if (session.has_memory()) report.stated = session.memory.statement();
  report.running = progress.running_step != 0;
  report.wait = wait_of(session, report.running);
  report.state = state_of(session, report.running, report.wait);
  return report;
}

std::array<uint64_t, ipc::kSessionStates> Reports::session_states() const {
  std::array<uint64_t, ipc::kSessionStates> counts{};
  for (const auto& [id, session] : sessions_.all()) {
    if (session->phase == SessionPhase::kGreeting) continue;
    const bool running = progress_of(*session).running_step != 0;
    ++counts[static_cast<size_t>(state_of(*session, running, wait_of(*session, running)))];
  }
  return counts;
}

uint64_t Reports::stated_local_models() const {
  uint64_t sum = 0;
  for (const auto& [id, session] : sessions_.all()) {
    if (!session->has_memory()) continue;
    sum = checked_add(sum, session->memory.statement().local_models).value_or(UINT64_MAX);
  }
  return sum;
}

std::array<uint64_t, kGroupPlaces> Reports::group_places() const {
  std::array<uint64_t, kGroupPlaces> counts{};
  for (const auto& [id, session] : sessions_.all()) {
    for (const auto& [index, group] : session->sequences.all()) {
      ++counts[static_cast<size_t>(GroupPlace{group.place})];
    }
  }
  return counts;
}

// A session may wait for several things at once; the first of these is reported.
ipc::SessionWait Reports::wait_of(const Session& session, bool running) const {
  const bool lacks = devices_.of(session.device).waits(Memory::of_session(session.id)) ||
                     models_.lacks_memory_for(session.id);
  if (lacks) return ipc::SessionWait::kMemory;
  const bool reads = models_.loads_for(session.id) || models_.awaited_by(session.id) ||
                     (session.moves_groups() && session.runs());
  if (reads) return ipc::SessionWait::kDisk;
  if (!session.has_memory()) return ipc::SessionWait::kNone;
  if (session.memory.client_is_awaited()) return ipc::SessionWait::kClient;
  const bool asks = session.phase == SessionPhase::kAttaching || session.memory.is_asked();
  return asks && !running ? ipc::SessionWait::kDevice : ipc::SessionWait::kNone;
}

void Reports::models(const Waiter& waiter, const Caller& caller, const ipc::ListModels& request) {
  answer_page<ipc::ModelList, ipc::ModelReport>(waiter, &ipc::ModelList::models, request.first,
                                                [this, caller] { return models_seen_by(caller); });
}

std::vector<ipc::ModelReport> Reports::models_seen_by(const Caller& caller) {
  std::vector<ipc::ModelReport> reports;
  for (const auto& [id, model] : models_.table().all()) {
    if (seen_by(model, caller)) reports.push_back(report_of(model, caller));
  }
  return reports;
}

std::array<uint64_t, ipc::kModelStates> Reports::model_states() const {
  std::array<uint64_t, ipc::kModelStates> counts{};
  for (const auto& [id, model] : models_.table().all()) {
    ++counts[static_cast<size_t>(state_of(model))];
  }
  return counts;
}

void Reports::uses(const Waiter& waiter, const Caller& caller, const ipc::ListUses& request) {
  answer_page<ipc::UseList, ipc::UseReport>(
      waiter, &ipc::UseList::uses, request.first, [this, caller, id = request.model] {
        std::vector<ipc::UseReport> reports = uses_seen_by(caller, id);
        std::ranges::move(names_seen_by(caller, id), std::back_inserter(reports));
        return reports;
      });
}

std::vector<ipc::UseReport> Reports::uses_seen_by(const Caller& caller, ModelId model) {
  std::vector<ipc::UseReport> reports;
  const auto found = models_.table().all().find(model);
  if (found == models_.table().all().end() || !seen_by(found->second, caller)) return reports;
  for (const auto& [id, lease] : *found->second.leases) {
    const Session* const session = sessions_.find(id);
    if (session == nullptr || !caller.may_steer(session->domain)) continue;
    ipc::UseReport& use = reports.emplace_back();
    use.session = id;
    use.owner = names_.of(session->domain);
    use.pid = static_cast<uint32_t>(session->pid);
    use.client_name = session->client_name;
  }
  for (const Owner user : *found->second.pins) {
    if (!caller.may_steer(user)) continue;
    ipc::UseReport& use = reports.emplace_back();
    use.kind = ipc::UseKind::kPin;
    use.owner = names_.of(user);
  }
  return reports;
}

std::vector<ipc::UseReport> Reports::names_seen_by(const Caller& caller, ModelId model) {
  std::vector<ipc::UseReport> reports;
  const auto found = models_.table().all().find(model);
  if (found == models_.table().all().end()) return reports;
  for (const auto& [user, name] : found->second.names) {
    if (!caller.may_steer(user)) continue;
    ipc::UseReport& use = reports.emplace_back();
    use.kind = ipc::UseKind::kName;
    use.owner = names_.of(user);
    use.label = name.label;
    use.path = name.path;
  }
  return reports;
}

// Gives enough of the hash to tell plans apart; 0 if there is no plan, which has the hash of no
// bytes.
static uint32_t first_bits(const load::Digest& hash) {
  uint32_t bits = 0;
  for (size_t i = 0; i < sizeof bits; ++i) bits = bits << 8 | static_cast<uint32_t>(hash[i]);
  constexpr uint32_t kHashOfNothing = 0xe3b0c442;  // SHA-256 begins so (FIPS 180-4)
  return bits == kHashOfNothing ? 0 : bits;
}

ipc::ModelReport Reports::report_of(const Model& model, const Caller& caller) {
  ipc::ModelReport report;
  report.model = model.id;
  report.owner = names_.of(model.owner());
  report.device = text_of(model.device());
  report.state = state_of(model);
  report.keep_alive_ms = models_.residency().keep_alive_of(model);
  report.expires_wall_ns = models_.residency().expires_at(model);
  report.bytes = model.bytes;
  report.bytes_loaded = model.bytes_loaded;
  report.huge_bytes = model.huge_bytes;
  report.on_gpus = models_.copies().places_of(model.id);
  report.files = static_cast<uint32_t>(model.sources.front().files.size());
  report.leases = static_cast<uint32_t>(model.leases->size());
  report.pinned = model.pinned();
  report.hashed = model.sha256.has_value();
  report.plan = first_bits(model.key().plan_hash);
  report.sha256 = model.sha256.value_or(std::array<uint8_t, 32>{});
  report.loaded_wall_ns = model.loaded_wall_ns;
  ModelName name = model.name_for(caller);
  report.label = std::move(name.label);
  report.path = std::move(name.path);
  report.numerics = model.numerics_for(caller);
  return report;
}

void Reports::programs(const Waiter& waiter, const Caller& caller,
                       const ipc::ListPrograms& request) {
  answer_page<ipc::ProgramList, ipc::ProgramReport>(
      waiter, &ipc::ProgramList::programs, request.first,
      [this, caller] { return programs_seen_by(caller); });
}

std::vector<ipc::ProgramReport> Reports::programs_seen_by(const Caller& caller) {
  std::vector<ipc::ProgramReport> reports;
  for (const auto& [id, program] : programs_.table().all()) {
    if (caller.may_steer(program.worker.owner)) reports.push_back(report_of(program));
  }
  return reports;
}

ipc::ProgramReport Reports::report_of(const Program& program) {
  ipc::ProgramReport report;
  report.program = program.id;
  report.model = program.model;
  report.owner = names_.of(program.worker.owner);
  report.device = text_of(program.worker.device);
  report.state = program.phase == ProgramPhase::kAdmitted ? ipc::ProgramState::kAdmitted
                                                          : ipc::ProgramState::kAdmitting;
  report.graph_bytes = program.graph_bytes;
  report.outputs = static_cast<uint32_t>(program.outputs.size());
  report.sessions = static_cast<uint32_t>(program.users.size());
  report.name = program.name;
  report.workload = program.workload;
  report.fast_nodes = program.fast_nodes;
  return report;
}

// --- events

namespace {

ipc::EventReport event_report_of(const Event& event) {
  ipc::EventReport report;
  report.number = event.number;
  report.wall_ns = event.wall_ns;
  report.kind = event.kind;
  report.text = event.text.substr(0, limits::kNameBytes);
  report.session = event.session;
  report.model = event.model;
  if (event.device) report.device = text_of(*event.device);
  report.bytes = event.bytes;
  report.error = event.error.value_or(ErrorCode::kOk);
  if (event.owner) report.user = event.owner->user();
  report.path = event.path;
  report.reason = event.sentence;
  return report;
}

// Any single event fits a page.
static_assert(2 * limits::kNameBytes + limits::kMessageTextBytes < limits::kEventTextBytes);

size_t text_bytes_of(const ipc::EventReport& event) {
  return event.text.size() + event.path.size() + event.reason.size();
}

}  // namespace

ipc::EventList Reports::events_for(const Follower& follower) const {
  ipc::EventList list;
  list.last = events_.last();
  const auto& recent = events_.recent();
  const uint64_t oldest = recent.empty() ? 1 : recent.front().number;
  DJINN_ASSERT(recent.empty() || recent.back().number - oldest + 1 == recent.size());
  const uint64_t next = std::max(follower.request.after, follower.request.after + 1);
  list.missed = oldest > next ? oldest - next : 0;
  const uint64_t known = next > oldest ? next - oldest : 0;
  size_t text_bytes = 0;
  for (uint64_t i = known; i < recent.size(); ++i) {
    if (!seen_by(recent[i], follower.caller)) continue;
    ipc::EventReport event = event_report_of(recent[i]);
    text_bytes += text_bytes_of(event);
    if (list.events.size() == limits::kListPage || text_bytes > limits::kEventTextBytes) {
      DJINN_ASSERT(!list.events.empty());
      list.last = list.events.back().number;
      break;
    }
    list.events.push_back(std::move(event));
  }
  return list;
}

void Reports::events(const Waiter& waiter, const Caller& caller, const ipc::FollowEvents& request) {
  const Follower follower{waiter, caller, request};
  ipc::EventList list = events_for(follower);
  if (!list.events.empty() || !request.wait) {
    return sessions_.reply(waiter, {waiter.number, std::move(list)});
  }
  // Each event causes a look at all followers, so a session may have only one request that waits.
  const auto of_session = [&](const Follower& one) { return one.waiter.session == waiter.session; };
  if (std::ranges::any_of(followers_, of_session)) {
    return sessions_.refuse(waiter, {ErrorCode::kLimitExceeded,
                                     "The session waits for events already. Read the answer "
                                     "to that request first."});
  }
  followers_.push_back(follower);
}

// The answer is deferred, because an event is emitted in the middle of the change that it reports.
void Reports::event_told() {
  if (!followers_.empty() && !follow_.active()) follow_.start_once(0);
}

void Reports::answer_followers() {
  followers_.remove_if([this](Follower& follower) {
    ipc::EventList list = events_for(follower);
    if (list.events.empty()) {
      // The follower may not see these events, so it has not missed them.
      if (list.missed == 0) follower.request.after = list.last;
      return false;
    }
    sessions_.owe(follower.waiter, [this, follower]() -> ipc::DaemonReply {
      return {follower.waiter.number, events_for(follower)};
    });
    return true;
  });
}

void Reports::session_left(SessionId session) {
  followers_.remove_if([&](const Follower& one) { return one.waiter.session == session; });
}

// --- the devices and their memory

ipc::DeviceReport Reports::report_of(const Memory& memory) const {
  ipc::DeviceReport report;
  report.device = text_of(memory.device());
  report.name = cpu_name_;
  report.used_bytes = memory.granted_bytes();
  report.total_bytes = memory.total_bytes();
  report.planned_bytes = memory.held_by(vmu::HolderKind::kLane);
  report.huge_bytes = models_.table().huge_bytes(memory.device());
  report.huge_pages = devices_.extents_of(memory.device()).huge_page_setting();
  if (const ChildReady* ready = domains_.last_spare(memory.device())) {
    report.isa = ready->isa;
    report.kernels = ready->kernels;
  }
  report.state =
      domains_.spares_fail(memory.device()) ? ipc::DeviceState::kFailed : ipc::DeviceState::kReady;
  report.lanes = lanes_on(memory.device());
  return report;
}

ipc::DeviceReport Reports::report_of(const Gpu& gpu) const {
  ipc::DeviceReport report = gpu.report();
  if (report.state == ipc::DeviceState::kReady) {
    const Status usable = gpus_.check_usable(gpu);
    report.reason = usable ? "" : ipc::showable_name(usable.error().message);
  }
  const Memory& memory = devices_.of(gpu.device());
  report.used_bytes = memory.granted_bytes();
  report.total_bytes = memory.total_bytes();
  report.planned_bytes = memory.held_by(vmu::HolderKind::kLane);
  report.lanes = lanes_on(memory.device());
  return report;
}

uint32_t Reports::lanes_on(DeviceId device) const {
  uint32_t lanes = 0;
  for (const auto& [key, worker] : domains_.all()) {
    lanes += key.device == device && worker->ready() ? 1 : 0;
  }
  return lanes;
}

std::vector<ipc::DeviceReport> Reports::all_devices() const {
  std::vector<ipc::DeviceReport> all;
  for (const auto& memory : devices_.all()) all.push_back(report_of(*memory));
  for (const auto& gpu : gpus_.all()) {
    all.push_back(report_of(*gpu));
    gpu->measure();  // the next report has fresh numbers
  }
  DJINN_ASSERT(all.size() <= limits::kDevices);
  return all;
}

void Reports::devices(const Waiter& waiter) {
  sessions_.reply(waiter, {waiter.number, ipc::DeviceList{all_devices()}});
}

void Reports::memory(const Waiter& waiter) {
  ipc::MemoryList list;
  for (const auto& memory : devices_.all()) {
    for (ipc::MemoryReport& pool : pools_of(*memory)) list.pools.push_back(std::move(pool));
  }
  for (const auto& memory : devices_.gpus()) {
    const IdleMemory::Offer idle = sessions_.idle_memory().offer(memory->device());
    list.pools.push_back(copies_report(*memory));
    list.pools.push_back(sessions_report(*memory, idle.ref_bytes()));
    list.pools.push_back(lanes_report(*memory, idle.lane_bytes()));
  }
  sessions_.reply(waiter, {waiter.number, std::move(list)});
}

void Reports::own_memory(const Waiter& waiter, const Session& session) {
  const Memory& memory = devices_.of(session.device);
  ipc::OwnMemory own;
  own.granted_bytes = memory.held_by(Memory::of_session(session.id));
  for (const auto& [index, group] : session.sequences.all()) {
    own.sequence_bytes += group.granted_bytes();
  }
  own.shared_bytes = models_.bytes_shared_by(session.id);
  const uint64_t quota = memory.session_quota();
  own.total_bytes = memory.total_bytes();
  DJINN_ASSERT(own.sequence_bytes <= own.granted_bytes);
  DJINN_ASSERT(memory.granted_bytes() <= own.total_bytes);
  own.free_bytes =
      std::min({own.total_bytes - memory.granted_bytes(),
                quota - std::min(quota, own.granted_bytes), memory.left_to(session.domain)});
  sessions_.reply(waiter, {waiter.number, own});
}

std::array<ipc::MemoryReport, 3> Reports::pools_of(const Memory& memory) const {
  const IdleMemory::Offer idle = sessions_.idle_memory().offer(memory.device());
  return {weights_report(memory), sessions_report(memory, idle.ref_bytes()),
          lanes_report(memory, idle.lane_bytes())};
}

ipc::MemoryReport Reports::weights_report(const Memory& memory) const {
  ipc::MemoryReport report;
  report.device = text_of(memory.device());
  report.pool = ipc::MemoryPool::kWeights;
  report.reserved_bytes =
      memory.held_by(vmu::HolderKind::kModel) + memory.held_by(vmu::HolderKind::kLoad);
  for (const auto& [id, model] : models_.table().all()) {
    if (model.device() != memory.device() || model.extents.empty()) continue;
    if (!model.mapped->empty()) report.mapped_bytes += model.bytes;
    if (model.pinned()) report.pinned_bytes += model.bytes;
    if (model.phase != ModelPhase::kResident || model.in_use()) continue;
    report.cached_bytes += model.bytes;
  }
  report.evictable_bytes = models_.residency().evictable_bytes(memory.device());
  return report;
}

// No worker maps any of it yet.
ipc::MemoryReport Reports::copies_report(const Memory& memory) const {
  ipc::MemoryReport report;
  report.device = text_of(memory.device());
  report.pool = ipc::MemoryPool::kWeights;
  report.reserved_bytes = memory.held_by(vmu::HolderKind::kModel);
  report.evictable_bytes = models_.copies().evictable_bytes(memory.device());
  report.cached_bytes = report.evictable_bytes;
  report.pinned_bytes = models_.copies().pinned_bytes(memory.device());
  return report;
}

ipc::MemoryReport Reports::sessions_report(const Memory& memory, uint64_t idle_bytes) const {
  ipc::MemoryReport report;
  report.device = text_of(memory.device());
  report.pool = ipc::MemoryPool::kSessions;
  report.reserved_bytes = memory.held_by(vmu::HolderKind::kSession);
  report.cached_bytes = idle_bytes;
  report.evictable_bytes =
      report.cached_bytes + sessions_.sequences().spill().evictable_bytes(memory.device());
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != memory.device() || !session->attached) continue;
    report.mapped_bytes += memory.held_by(Memory::of_session(id));
  }
  return report;
}

// A slab belongs to its worker for as long as that lives; one that serves no session ends when the
// memory is wanted.
ipc::MemoryReport Reports::lanes_report(const Memory& memory, uint64_t idle_bytes) const {
  ipc::MemoryReport report;
  report.device = text_of(memory.device());
  report.pool = ipc::MemoryPool::kLanes;
  report.reserved_bytes =
      memory.held_by(vmu::HolderKind::kLane) + memory.held_by(vmu::HolderKind::kHeap);
  report.mapped_bytes = report.reserved_bytes;
  report.cached_bytes = idle_bytes;
  report.evictable_bytes = report.cached_bytes;
  return report;
}

}  // namespace djinn::daemon
