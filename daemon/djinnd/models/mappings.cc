// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/mappings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

void Mappings::add(Model& model, WorkerKey key) {
  DJINN_ASSERT(model.phase == ModelPhase::kResident);
  const auto [at, is_new] = model.mapped.value_.try_emplace(key);
  if (is_new) at->second.parked = !send(model, key);
}

const std::vector<Fd>* Mappings::bytes_for(const Model& model, WorkerKey key) const {
  if (model.phase != ModelPhase::kResident) return nullptr;
  return key.device == model.device() ? &model.extents : copy_of_(model.id, key.device);
}

bool Mappings::send(const Model& model, WorkerKey key) {
  DJINN_ASSERT(model.manifest.valid() && model.phase != ModelPhase::kUnloading);
  const std::vector<Fd>* const extents = bytes_for(model, key);
  std::vector<int> fds{model.manifest.get()};
  if (extents != nullptr) {
    for (const Fd& extent : *extents) fds.push_back(extent.get());
  }
  domains_.send(key, {ipc::AddModel{model.id, extents == nullptr}}, fds);
  return extents != nullptr && (key.device == model.device() || domains_.ready(key));
}

// Where they are nowhere yet it waits on.
void Mappings::send_again(const Model& model, WorkerKey key, MappedBy& mapped) {
  if (bytes_for(model, key) == nullptr) {
    mapped.parked = true;
    return;
  }
  mapped = {.deaths = mapped.deaths};
  mapped.parked = !send(model, key);
}

void Mappings::let_go(const Model& model, WorkerKey key, MappedBy& mapped) {
  mapped.parked = !domains_.ready(key);
  mapped.parking = !mapped.parked;
  if (mapped.parking) domains_.send(key, {ipc::ParkModel{model.id}});
}

// --- what becomes of a model

void Mappings::park(Model& model) {
  DJINN_ASSERT(model.phase == ModelPhase::kEvicting);
  for (auto& [key, mapped] : model.mapped.value_) let_go(model, key, mapped);
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
    if (!mapped.parking) send_again(model, key, mapped);
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

// --- what becomes of its copy on a GPU

void Mappings::copy_came(Model& model, DeviceId gpu) {
  for (auto& [key, mapped] : model.mapped.value_) {
    if (key.device == gpu && mapped.parked && !mapped.parking) send_again(model, key, mapped);
  }
}

void Mappings::copy_leaves(Model& model, DeviceId gpu) {
  for (auto& [key, mapped] : model.mapped.value_) {
    if (key.device == gpu && !mapped.parked && !mapped.parking) let_go(model, key, mapped);
  }
}

void Mappings::refuse_copy(Model& model, DeviceId gpu, const Error& why) {
  for (auto& [key, mapped] : model.mapped.value_) {
    if (key.device != gpu || !std::exchange(mapped.wanted, false)) continue;
    domains_.send(key, {ipc::ModelLost{model.id, why.code, why.message}});
  }
}

bool Mappings::has_let_go(const Model& model, DeviceId gpu) {
  return std::ranges::none_of(*model.mapped, [gpu](const auto& entry) {
    return entry.first.device == gpu && !entry.second.parked;
  });
}

std::set<DeviceId> Mappings::wanting_gpus(const Model& model) const {
  std::set<DeviceId> gpus;
  for (const auto& [key, mapped] : *model.mapped) {
    if (mapped.wanted && bytes_for(model, key) == nullptr) gpus.insert(key.device);
  }
  return gpus;
}

// --- questions

bool Mappings::is_parked(const Model& model) {
  return std::ranges::all_of(*model.mapped, [](const auto& entry) { return entry.second.parked; });
}

bool Mappings::is_added(const Model& model, WorkerKey key) {
  const auto mapped = model.mapped->find(key);
  const bool has_place = mapped != model.mapped->end() && mapped->second.added;
  return has_place && (key.device == model.device() || !mapped->second.parked);
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
  for (auto& [id, model] : table_.all()) {
    const bool known = model.manifest.valid() && model.phase != ModelPhase::kUnloading;
    const auto mapped = model.mapped.value_.find(key);
    if (known && mapped != model.mapped->end()) mapped->second.parked = !send(model, key);
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
  if (!asked || model->phase != ModelPhase::kResident) return nullptr;
  send_again(*model, key, mapped);
  return mapped.parked ? model : nullptr;
}

Model* Mappings::on_model_wanted(WorkerKey key, const ipc::ModelWanted& event) {
  Model* const model = find(key, event.model);
  if (model == nullptr) {
    const Error gone{ErrorCode::kNotFound, "There is no such model any more. Open it again."};
    domains_.send(key, {ipc::ModelLost{event.model, gone.code, gone.message}});
    return nullptr;
  }
  MappedBy& mapped = model->mapped.value_.at(key);
  mapped.wanted = mapped.parked || mapped.parking;  // else the bytes are on their way to it
  return model;
}

Model* Mappings::on_model_dropped(WorkerKey key, const ipc::ModelDropped& event) {
  Model* const model = table_.find(event.model);
  if (model == nullptr || model->phase != ModelPhase::kUnloading) return nullptr;
  model->mapped.value_.erase(key);
  return model;
}

}  // namespace djinn::daemon
