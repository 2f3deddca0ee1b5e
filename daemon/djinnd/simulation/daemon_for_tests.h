// SPDX-License-Identifier: Apache-2.0

// Lets the simulation see what djinnd's parts keep to themselves.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "daemon/djinnd/daemon.h"

namespace djinn::daemon {

struct DaemonForTests {
  static const Devices& devices(Daemon& d) { return d.devices_; }
  static const Quotas& quotas(Daemon& d) { return d.quotas_; }
  static Domains& domains(Daemon& d) { return d.domains_; }
  static Sessions& sessions(Daemon& d) { return d.sessions_; }
  static Models& models(Daemon& d) { return d.models_; }
  static const Programs& programs(Daemon& d) { return d.programs_; }
  static const Stragglers& stragglers(Daemon& d) { return d.stragglers_; }
  static ModelTable& table(Daemon& d) { return d.models_.table_; }

  static const std::map<Memory::Holder, uint64_t>& held(const Memory& memory) {
    return memory.held_;
  }
  static uint64_t aside_of(const Memory& memory, SessionId id) {
    return memory.ledger_.aside_of(vmu::PrincipalId{id.value});
  }
  // A request that waits for memory of others', which somebody must look after.
  static bool one_waits_for_others(const Memory& memory) {
    return std::ranges::any_of(
        memory.waiting_, [&](const auto& waiting) { return !memory.waits_for_its_own(waiting); });
  }
  static std::vector<std::unique_ptr<Reclaimer>>& reclaimers(Daemon& d) {
    return d.reclaimers_.all_;
  }
  static Memory& memory_of(const Reclaimer& reclaimer) { return reclaimer.memory_; }
  // Of the reclaimer's device: what comes free by itself, and what others but groups could be asked
  // for now.
  static uint64_t possible_bytes(Daemon& d, const Reclaimer& reclaimer) {
    const DeviceId device = reclaimer.device();
    return reclaimer.coming_bytes() + d.sessions_.idle_memory().offer(device).bytes() +
           reclaimer.weights_.evictable_bytes(device);
  }
  static bool waiting_is_looked_at(Daemon& d, DeviceId device) {
    return std::ranges::any_of(d.reclaimers_.all_, [&](const auto& reclaimer) {
      return reclaimer->device() == device && reclaimer->waiting_.active();
    });
  }

  static size_t released(Daemon& d) { return d.sessions_.released_.size(); }
  // Whose it was, and on which device.
  static std::optional<WorkerKey> released_from(Daemon& d, SessionId id) {
    const auto found = d.sessions_.released_.find(id);
    if (found == d.sessions_.released_.end()) return std::nullopt;
    return WorkerKey{found->second.user, found->second.device};
  }

  // The device of the load, if it is there, or what it held.
  static std::optional<DeviceId> device_of(Daemon& d, LoadId id) {
    const LoadQueue& queue = d.models_.queue_;
    const auto load = queue.loads_.find(id);
    if (load != queue.loads_.end()) return load->second.device;
    const auto abandoned = queue.abandoned_.find(id);
    if (abandoned != queue.abandoned_.end()) return abandoned->second.device;
    return std::nullopt;
  }
  static bool has_load(Daemon& d, LoadId id) { return device_of(d, id).has_value(); }
  static const std::set<ModelId>& returning(Daemon& d) { return d.models_.returning_; }
  // As any change of a model does: what could not be kept is tried again.
  static void models_changed(Daemon& d) { d.models_changed(); }
  static bool keeps_nothing(Daemon& d) { return d.fd_store_.descriptors_max() == 0; }
  // Whether djinnd has said that the model would not outlive a restart.
  static bool is_told_not_kept(Daemon& d, ModelId id) { return d.fd_store_.not_kept_.contains(id); }

  static size_t loads(Daemon& d) {
    return d.models_.queue_.loads_.size() + d.models_.queue_.abandoned_.size();
  }
  // Nothing, or a load that is queued although its turn has a place.
  static std::optional<LoadId> forgotten_load(Daemon& d) {
    const LoadQueue& queue = d.models_.queue_;
    for (const LoadId id : queue.queued_) {
      const auto& entry = queue.loads_.at(id);
      const bool has_ended = entry.load->phase() == LoadPhase::kEnded;
      if (!has_ended && queue.running_of(entry.turn) < LoadQueue::kLoadsPerUser) return id;
    }
    return std::nullopt;
  }

  // The worker whose lane or heap the holder is; nothing: nobody's.
  static std::optional<WorkerKey> worker_of(Daemon& d, Memory::Holder holder) {
    for (const auto& [key, known] : d.lanes_.known_) {
      if (known.number.value == holder.id) return key;
    }
    return std::nullopt;
  }
};

}  // namespace djinn::daemon
