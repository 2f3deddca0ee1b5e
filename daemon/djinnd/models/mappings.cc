// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/mappings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

void Mappings::add(Model& model, Owner user) {
  DJINN_ASSERT(model.phase == ModelPhase::kResident);
  const WorkerKey key = model.worker_of(user);
  const bool fresh = model.mapped.value_.try_emplace(key).second;
  if (fresh) send(model, key);
}

void Mappings::send(const Model& model, WorkerKey key) {
  DJINN_ASSERT(model.manifest.valid() && model.phase != ModelPhase::kUnloading);
  const bool parked = model.phase != ModelPhase::kResident;
  std::vector<int> fds{model.manifest.get()};
  if (!parked) {
    for (const Fd& extent : model.extents) fds.push_back(extent.get());
  }
  domains_.send(key, {ipc::AddModel{model.id, parked}}, fds);
}

// --- what becomes of a model

void Mappings::park(Model& model) {
  DJINN_ASSERT(model.phase == ModelPhase::kEvicting);
  for (auto& [key, mapped] : model.mapped.value_) {
    mapped.parked = !domains_.ready(key);
    mapped.parking = !mapped.parked;
    if (mapped.parking) domains_.send(key, {ipc::ParkModel{model.id}});
  }
}

void Mappings::drop(Model& model) {
  DJINN_ASSERT(model.phase == ModelPhase::kUnloading);
  std::erase_if(model.mapped.value_,
                [&](const auto& entry) { return !domains_.ready(entry.first); });
  for (const auto& [key, mapped] : *model.mapped) {
    domains_.send(key, {ipc::DropModel{model.id}});
  }
}

void Mappings::restore(Model& model) {
  DJINN_ASSERT(model.phase == ModelPhase::kResident);
  for (auto& [key, mapped] : model.mapped.value_) {
    if (mapped.parking) continue;
    mapped = {.deaths = mapped.deaths};
    send(model, key);
  }
}

void Mappings::refuse_runs(Model& model, const LoadFailure& failure) {
  DJINN_ASSERT(model.phase == ModelPhase::kOnDisk);
  for (auto& [key, mapped] : model.mapped.value_) {
    if (!std::exchange(mapped.wanted, false)) continue;
    const bool is_own = key.owner == failure.user;
    domains_.send(key, {ipc::ModelLost{model.id, failure.error.code,
                                       is_own ? failure.sentence : failure.error.message}});
  }
}

bool Mappings::is_parked(const Model& model) {
  return std::ranges::all_of(*model.mapped, [](const auto& entry) { return entry.second.parked; });
}

bool Mappings::is_added(const Model& model, Owner user) {
  const auto mapped = model.mapped->find(model.worker_of(user));
  return mapped != model.mapped->end() && mapped->second.added;
}

bool Mappings::is_wanted(const Model& model) {
  return std::ranges::any_of(*model.mapped, [](const auto& entry) { return entry.second.wanted; });
}

// --- workers

Model* Mappings::find(WorkerKey key, ModelId id) {
  Model* const model = table_.find(id);
  return model != nullptr && model->mapped->contains(key) ? model : nullptr;
}

void Mappings::worker_ready(WorkerKey key) {
  for (const auto& [id, model] : table_.all()) {
    const bool known = model.manifest.valid() && model.phase != ModelPhase::kUnloading;
    if (known && model.mapped->contains(key)) send(model, key);
  }
}

bool Mappings::worker_died(Model& model, WorkerKey key, const WorkerDeath& death) {
  const auto found = model.mapped.value_.find(key);
  if (found == model.mapped->end()) return false;
  MappedBy& mapped = found->second;
  mapped = {.parked = true, .deaths = mapped.deaths};
  if (model.phase == ModelPhase::kUnloading) {
    model.mapped.value_.erase(found);
    return false;
  }
  const OwedAnswer adding{OwedAnswer::Kind::kAddModel, model.id.value, {}};
  const bool kills = death.suspect == adding && ++mapped.deaths >= limits::kDeathsWithoutProgress;
  if (kills) model.mapped.value_.erase(found);
  return kills;
}

Model* Mappings::on_model_added(WorkerKey key, const ipc::ModelAdded& event) {
  Model* const model = find(key, event.model);
  if (model == nullptr) return nullptr;
  if (event.code != ErrorCode::kOk) {
    domains_.send(key, {ipc::ModelLost{event.model, event.code, event.message}});
    model->mapped.value_.erase(key);
    return model;
  }
  MappedBy& mapped = model->mapped.value_.at(key);
  mapped.added = true;
  mapped.deaths = 0;
  return model;
}

Model* Mappings::on_model_parked(WorkerKey key, const ipc::ModelParked& event) {
  Model* const model = find(key, event.model);
  if (model == nullptr) return nullptr;
  MappedBy& mapped = model->mapped.value_.at(key);
  const bool asked = std::exchange(mapped.parking, false);
  if (model->phase == ModelPhase::kEvicting) {
    mapped.parked = true;
    return model;
  }
  if (asked && model->phase == ModelPhase::kResident) {
    mapped = {.deaths = mapped.deaths};
    send(*model, key);
  }
  return nullptr;
}

Model* Mappings::on_model_wanted(WorkerKey key, const ipc::ModelWanted& event) {
  Model* const model = find(key, event.model);
  if (model == nullptr) {
    const Error gone{ErrorCode::kNotFound, "There is no such model any more. Open it again."};
    domains_.send(key, {ipc::ModelLost{event.model, gone.code, gone.message}});
    return nullptr;
  }
  model->mapped.value_.at(key).wanted = true;
  return model;
}

Model* Mappings::on_model_dropped(WorkerKey key, const ipc::ModelDropped& event) {
  Model* const model = table_.find(event.model);
  if (model == nullptr || model->phase != ModelPhase::kUnloading) return nullptr;
  model->mapped.value_.erase(key);
  return model;
}

}  // namespace djinn::daemon
