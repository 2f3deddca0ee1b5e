#include "daemon/djinnd/reports.h"

#include <dirent.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/djinnd/version.h"
#include "ipc/limits.h"

namespace djinn::daemon {
namespace {

// Entries of /proc/self/fd, without ".", ".." and the descriptor that reads it.
uint32_t count_descriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir("/proc/self/fd"), &::closedir);
  uint32_t count = 0;
  while (list && ::readdir(list.get()) != nullptr) ++count;
  return count > 3 ? count - 3 : 0;
}

// The page of a list that begins at item first.
template <typename Item>
std::vector<Item> page_of(std::vector<Item> items, uint32_t first) {
  const size_t begin = std::min<size_t>(first, items.size());
  const size_t end = std::min<size_t>(begin + limits::kListPage, items.size());
  return {std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(begin)),
          std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(end))};
}

}  // namespace

Reports::Reports(World world)
    : world_(world),
      started_wall_ns_(world.clock.wall_ns()),
      timeout_(world.loop, [this] { answer_all(); }) {}

// --- status

void Reports::status(const Asker& asker, const ipc::GetStatus& request) {
  Waiting waiting{asker, request, {}};
  for (const auto& [domain, worker] : world_.domains.all()) {
    if (!worker->ready()) continue;
    worker->send({ipc::GetWorkerStats{}});
    waiting.owing.push_back(domain);
  }
  waiting_.push_back(std::move(waiting));
  if (!timeout_.active()) timeout_.start_once(kStatsTimeoutMs);
  answer_ready();
}

void Reports::hear(DomainId domain, const ipc::WorkerStats& stats) {
  if (WorkerSupervisor* const worker = world_.domains.find(domain)) worker->note_stats(stats);
  for (Waiting& waiting : waiting_) std::erase(waiting.owing, domain);
  answer_ready();
}

void Reports::worker_died(DomainId domain) {
  for (Waiting& waiting : waiting_) std::erase(waiting.owing, domain);
  answer_ready();
}

void Reports::answer_ready() {
  waiting_.remove_if([this](const Waiting& waiting) {
    if (!waiting.owing.empty()) return false;
    world_.sessions.reply(waiting.asker, {waiting.asker.number, make_status(waiting.request)}, {});
    return true;
  });
  if (waiting_.empty()) timeout_.stop();
}

// Whoever has not told its counts by now is reported with its last ones.
void Reports::answer_all() {
  for (Waiting& waiting : waiting_) waiting.owing.clear();
  answer_ready();
}

ipc::StatusReport Reports::make_status(const ipc::GetStatus& request) {
  ipc::StatusReport report;
  report.version = kVersion;
  report.started_wall_ns = started_wall_ns_;
  report.memory_total_bytes = world_.memory.total_bytes();
  report.memory_granted_bytes = world_.memory.granted_bytes();
  report.memory_models_bytes = world_.memory.held_by(vmu::HolderKind::kModel) +
                               world_.memory.held_by(vmu::HolderKind::kLoad);
  report.memory_sessions_bytes = world_.memory.held_by(vmu::HolderKind::kSession);
  report.memory_lanes_bytes =
      world_.memory.held_by(vmu::HolderKind::kLane) + world_.memory.held_by(vmu::HolderKind::kHeap);
  report.sessions = static_cast<uint32_t>(world_.sessions.all().size());
  report.models = static_cast<uint32_t>(world_.models.table().size());
  report.programs = static_cast<uint32_t>(world_.programs.size());
  report.descriptors = count_descriptors();
  report.bytes_read = world_.models.bytes_read();
  report.buffered_reads = world_.models.buffered_reads();
  std::vector<ipc::WorkerReport> workers;
  for (const auto& [domain, worker] : world_.domains.all()) workers.push_back(worker->report());
  report.workers_total = static_cast<uint32_t>(workers.size());
  report.workers = page_of(std::move(workers), request.first_worker);
  return report;
}

// --- lists

void Reports::sessions(const Asker& asker, DomainId asking, const ipc::ListSessions& request) {
  std::vector<ipc::SessionReport> reports;
  for (const auto& [id, session] : world_.sessions.all()) {
    const bool seen = asking == 0 || session->domain == asking;
    if (seen && session->phase != SessionPhase::kGreeting) reports.push_back(report_of(*session));
  }
  ipc::SessionList list;
  list.total = static_cast<uint32_t>(reports.size());
  list.sessions = page_of(std::move(reports), request.first);
  world_.sessions.reply(asker, {asker.number, std::move(list)}, {});
}

ipc::SessionReport Reports::report_of(const Session& session) {
  ipc::SessionReport report;
  report.session = session.id;
  report.client_name = session.client_name;
  report.owner = names_.of(session.domain);
  report.pid = static_cast<uint32_t>(session.pid);
  report.started_wall_ns = session.started_wall_ns;
  report.granted_bytes = world_.memory.held_by(Memory::of_session(session.id));
  report.models = world_.models.leases_of(session.id);
  report.sequences = static_cast<uint32_t>(session.sequences.size());
  if (!session.has_memory()) return report;
  const auto progress = session.memory.progress();
  if (progress.ok()) {
    report.steps = progress.value().commit;
    report.running = progress.value().running_step != 0;
  }
  return report;
}

void Reports::models(const Asker& asker, DomainId asking, const ipc::ListModels& request) {
  std::vector<ipc::ModelReport> reports;
  for (const auto& [id, model] : world_.models.table().all()) {
    const bool seen = asking == 0 || model.key.domain == asking || model.mapped.contains(asking);
    if (seen && model.phase != ModelPhase::kUnloading) reports.push_back(report_of(model));
  }
  ipc::ModelList list;
  list.total = static_cast<uint32_t>(reports.size());
  list.models = page_of(std::move(reports), request.first);
  world_.sessions.reply(asker, {asker.number, std::move(list)}, {});
}

ipc::ModelReport Reports::report_of(const Model& model) {
  ipc::ModelReport report;
  report.model = model.id;
  report.label = model.label;
  report.owner = names_.of(model.key.domain);
  report.state =
      model.phase == ModelPhase::kLoading ? ipc::ModelState::kLoading : ipc::ModelState::kResident;
  report.bytes = model.bytes;
  report.bytes_loaded = model.bytes_loaded;
  report.files = static_cast<uint32_t>(model.files.size());
  report.leases = static_cast<uint32_t>(model.leases.size());
  report.pinned = model.pinned;
  report.hashed = model.sha256.has_value();
  report.sha256 = model.sha256.value_or(std::array<uint8_t, 32>{});
  report.loaded_wall_ns = model.loaded_wall_ns;
  return report;
}

}  // namespace djinn::daemon
