// SPDX-License-Identifier: Apache-2.0

// Lets the simulation see what djinnd's parts keep to themselves.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "daemon/djinnd/daemon.h"

namespace djinn::daemon {

struct DaemonForTests {
  // The simulated machine has one device.
  static Memory& memory(Daemon& d) { return d.devices_.first(); }
  static const Quotas& quotas(Daemon& d) { return d.quotas_; }
  static Domains& domains(Daemon& d) { return d.domains_; }
  static Sessions& sessions(Daemon& d) { return d.sessions_; }
  static Models& models(Daemon& d) { return d.models_; }
  static const Programs& programs(Daemon& d) { return d.programs_; }
  static const Stragglers& stragglers(Daemon& d) { return d.stragglers_; }
  static ModelTable& table(Daemon& d) { return d.models_.table_; }

  static const std::map<Memory::Holder, uint64_t>& held(Daemon& d) { return memory(d).held_; }
  static std::optional<Owner> user_of(Daemon& d, Memory::Holder holder) {
    return memory(d).users_.user_of(holder);
  }
  static uint64_t aside_of(Daemon& d, SessionId id) {
    return memory(d).ledger_.aside_of(vmu::PrincipalId{id.value});
  }
  // A request that waits for memory of others', which somebody must look after.
  static bool one_waits_for_others(Daemon& d) {
    for (const auto& waiting : memory(d).waiting_) {
      if (!memory(d).waits_for_its_own(waiting)) return true;
    }
    return false;
  }
  static bool waiting_is_looked_at(Daemon& d) {
    return d.reclaimers_.all_.front()->waiting_.active();
  }

  static bool is_released(Daemon& d, SessionId id) { return d.sessions_.released_.contains(id); }
  static size_t released(Daemon& d) { return d.sessions_.released_.size(); }
  static std::optional<Owner> released_user(Daemon& d, SessionId id) {
    const auto found = d.sessions_.released_.find(id);
    return found == d.sessions_.released_.end() ? std::nullopt : std::optional(found->second.user);
  }

  // Whether the load is there, or what it held.
  static bool has_load(Daemon& d, LoadId id) {
    const LoadQueue& queue = d.models_.queue_;
    return queue.loads_.contains(id) || queue.abandoned_.contains(id);
  }
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
