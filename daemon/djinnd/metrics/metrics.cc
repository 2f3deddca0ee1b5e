// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/metrics/metrics.h"

#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

Metrics::Metrics(Loop& loop, const Clock& clock, Events& events, const PeerTraffic& traffic,
                 const Devices& devices, const Gpus& gpus, Domains& domains, Models& models,
                 Programs& programs, const Spill& spill, StatsRounds& stats, const Reports& reports,
                 const Drain& drain, const Service& service, const FdStore& fd_store,
                 const Journal& journal, const Notifier& notifier,
                 const DeferredClose& deferred_close)
    : loop_(loop),
      clock_(clock),
      traffic_(traffic),
      devices_(devices),
      gpus_(gpus),
      domains_(domains),
      models_(models),
      programs_(programs),
      spill_(spill),
      stats_(stats),
      reports_(reports),
      drain_(drain),
      service_(service),
      fd_store_(fd_store),
      journal_(journal),
      notifier_(notifier),
      deferred_close_(deferred_close),
      started_wall_ns_(clock.wall_ns()),
      wake_(loop, [this] { asked(); }) {
  events.listen([this](const Event& event) { on_event(event); });
}

Status Metrics::serve(std::vector<Fd> sockets) {
  DJINN_ASSERT(server_ == nullptr);
  if (sockets.empty()) return {};
  DJINN_TRY(server_, MetricsServer::start(std::move(sockets), clock_, [this] {
              asked_ns_.store(clock_.monotonic_ns(), std::memory_order_relaxed);
              wake_.call();
            }));
  server_->publish(std::make_unique<const MetricsSnapshot>(take()));
  return {};
}

void Metrics::asked() {
  loop_delay_ns_ = clock_.monotonic_ns() - asked_ns_.load(std::memory_order_relaxed);
  stats_.ask([](Owner) { return true; },
             [this] {
               if (server_) server_->publish(std::make_unique<const MetricsSnapshot>(take()));
             });
}

void Metrics::on_event(const Event& event) {
  DJINN_ASSERT(static_cast<size_t>(event.kind) < events_.size());
  ++events_[static_cast<size_t>(event.kind)];
  switch (event.kind) {
    case EventKind::kModelLoading:
      loading_[event.model] = clock_.monotonic_ns();
      return;
    case EventKind::kModelLoaded:
      on_disk_.erase(event.model);
      if (const auto load = loading_.extract(event.model)) {
        load_time_.note(clock_.monotonic_ns() - load.mapped());
      }
      return;
    case EventKind::kModelEvicted:
      count_eviction(event);
      on_disk_.insert(event.model);
      return;
    case EventKind::kModelUnloaded:
      if (on_disk_.erase(event.model) == 0) count_eviction(event);
      loading_.erase(event.model);
      return;
    case EventKind::kModelFailed:
      loading_.erase(event.model);
      return;
    case EventKind::kSequenceSpilled:
      spilled_bytes_ += event.bytes.value_or(0);
      return;
    case EventKind::kSequenceRestored:
      restored_bytes_ += event.bytes.value_or(0);
      return;
    default:
      return;
  }
}

void Metrics::count_eviction(const Event& event) {
  if (event.reason) ++evictions_[static_cast<size_t>(*event.reason)];
  evicted_bytes_ += event.bytes.value_or(0);
}

MetricsSnapshot Metrics::take() const {
  MetricsSnapshot shot;
  shot.taken_ns = clock_.monotonic_ns();
  shot.loop_delay_ns = loop_delay_ns_;
  shot.started_wall_ns = started_wall_ns_;
  shot.sessions = reports_.session_states();
  shot.stated_local_models = reports_.stated_local_models();
  add_memory(shot);
  add_models(shot);
  add_groups(shot);
  add_programs(shot);
  add_workers(shot);
  shot.clients = traffic_.clients;
  shot.worker_traffic = traffic_.workers;
  shot.loader_traffic = traffic_.loaders;
  shot.kept_descriptors = fd_store_.descriptors();
  shot.kept_descriptors_max = fd_store_.descriptors_max();
  shot.models_not_kept = fd_store_.models_not_kept();
  shot.closing_descriptors = deferred_close_.waiting();
  shot.log_lost = log_lines_lost() + journal_.lost();
  shot.notify_lost = notifier_.words_lost();
  shot.watchdog = service_.watchdog();
  shot.events = events_;
  judge(shot);
  return shot;
}

void Metrics::add_memory(MetricsSnapshot& shot) const {
  shot.session_quota_bytes = devices_.first().session_quota();
  for (const auto& memory : devices_.all()) {
    shot.devices.push_back(
        {memory->device(), memory->total_bytes(), memory->held_by(vmu::HolderKind::kModel),
         memory->held_by(vmu::HolderKind::kLoad), memory->held_by(vmu::HolderKind::kSession),
         memory->held_by(vmu::HolderKind::kLane), memory->held_by(vmu::HolderKind::kHeap),
         reports_.pools_of(*memory), !domains_.spares_fail(memory->device()),
         models_.table().huge_bytes(memory->device()),
         devices_.extents_of(memory->device()).huge_page_setting()});
    shot.memory_waiting += memory->waiting();
  }
  for (const auto& gpu : gpus_.all()) add_gpu(*gpu, shot);
}

void Metrics::add_gpu(const Gpu& gpu, MetricsSnapshot& shot) const {
  const Memory& memory = devices_.of(gpu.device());
  const ipc::DeviceReport report = gpu.report();
  DeviceSnapshot& one = shot.devices.emplace_back();
  one.device = gpu.device();
  one.limit_bytes = memory.total_bytes();
  one.model_bytes = memory.held_by(vmu::HolderKind::kModel);
  for (size_t i = 0; i < one.pools.size(); ++i) {
    one.pools[i].pool = static_cast<ipc::MemoryPool>(i);
  }
  one.pools[static_cast<size_t>(ipc::MemoryPool::kWeights)] = reports_.copies_report(memory);
  one.ready = gpu.is_ready();
  one.gpu = {report.hardware_bytes, report.hardware_free_bytes, report.uploaded_bytes};
  shot.memory_waiting += memory.waiting();
}

void Metrics::add_models(MetricsSnapshot& shot) const {
  shot.models = reports_.model_states();
  for (const auto& [id, model] : models_.table().all()) {
    shot.models_pinned += model.pinned() ? 1 : 0;
    shot.model_leases += model.leases->size();
  }
  shot.loads = events_[static_cast<size_t>(EventKind::kModelLoaded)];
  shot.loads_failed = models_.loads_failed();
  shot.load_bytes = models_.bytes_read();
  shot.buffered_reads = models_.buffered_reads();
  shot.compared_opens = models_.compared_opens();
  shot.load_time = load_time_;
  shot.evictions = evictions_;
  shot.evicted_bytes = evicted_bytes_;
}

void Metrics::add_groups(MetricsSnapshot& shot) const {
  shot.groups = reports_.group_places();
  shot.groups_on_disk_bytes = spill_.spilled_bytes();
  shot.spilled_bytes = spilled_bytes_;
  shot.restored_bytes = restored_bytes_;
}

void Metrics::add_programs(MetricsSnapshot& shot) const {
  for (const auto& [id, program] : programs_.table().all()) {
    ++shot.programs[static_cast<size_t>(ProgramPhase{program.phase})];
    shot.program_graph_bytes += program.graph_bytes;
  }
  shot.definitions = programs_.counts();
}

void Metrics::add_workers(MetricsSnapshot& shot) const {
  for (const auto& [key, worker] : domains_.all()) {
    add_counts(shot.counts, worker->counts());
    shot.worker_restarts += worker->restarts();
    if (!worker->absent()) ++shot.workers[static_cast<size_t>(worker->report().state)];
  }
}

void Metrics::judge(MetricsSnapshot& shot) const {
  const Status books = devices_.check();
  shot.healthy = books.ok();
  if (!books) shot.unhealthy_why = "The books of memory do not balance: " + books.error().message;
  shot.draining = drain_.draining();
  const DeviceId first = devices_.first().device();
  const bool workers_start = !domains_.spares_fail(first);
  const bool can_serve = workers_start && domains_.last_spare(first) != nullptr;
  shot.ready = shot.healthy && can_serve && !shot.draining;
  if (!shot.healthy) {
    shot.unready_why = shot.unhealthy_why;
  } else if (!workers_start) {
    shot.unready_why = "No worker can be started; the log says why.";
  } else if (!can_serve) {
    shot.unready_why = "The first worker is being started.";
  } else if (shot.draining) {
    shot.unready_why = "djinnd is draining; djinnctl resume ends it.";
  }
}

}  // namespace djinn::daemon
