// SPDX-License-Identifier: Apache-2.0

// Mappings: which workers have which models, and what they are told of them. It alone changes
// Model::mapped.
//
//   mapping   a worker has the model, or is to have it; it stays when the worker dies, and
//             the next worker gets it again
//   added     the present worker has said that it maps the model
//   parked    it has let go of the bytes, and kept the place with its programs; who is dead has let
//             go as well
//   wanted    a run there waits for the bytes
//
// A GPU's workers map the model's copy there (copies.h), which comes and goes by itself: without
// one they have the place alone.
//
// What a worker says is no order: each function gives the model that something has become of, for
// its caller to decide. A model that the worker does not have is none.
//
// invariant: what is told to a worker that is not ready is told again by worker_ready().
#pragma once

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "kernel/base/device_id.h"
#include "kernel/base/fd.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Mappings {
 public:
  // The extents of the model's copy on a GPU; null where there is none that was compared.
  using CopyOf = std::function<const std::vector<Fd>*(ModelId, DeviceId)>;

  Mappings(ModelTable& table, Domains& domains, CopyOf copy_of)
      : table_(table), domains_(domains), copy_of_(std::move(copy_of)) {}

  // The worker is to have the model, from now on. Nothing new where it is to already.
  void add(Model& model, WorkerKey key);

  // --- what becomes of a model
  // Its workers are to let go of the bytes; who has none counts as parked.
  void park(Model& model);
  // They are to forget it.
  void drop(Model& model);
  // It is resident again, or stays: who has let go of the bytes gets them, and whose answer to
  // park() is still to come gets them after that.
  void restore(Model& model);
  // It could not be brought back: runs that wait for it are told.
  void refuse_runs(Model& model, const LoadFailure& failure);

  // --- what becomes of a resident model's copy on a GPU
  void copy_came(Model& model, DeviceId gpu);
  // The GPU's workers are to let go of it.
  void copy_leaves(Model& model, DeviceId gpu);
  // There can be none: runs that wait for it are told.
  void refuse_copy(Model& model, DeviceId gpu, const Error& why);
  // Whether no worker of the GPU has its bytes.
  [[nodiscard]] static bool has_let_go(const Model& model, DeviceId gpu);
  // The GPUs whose workers wait for one.
  [[nodiscard]] std::set<DeviceId> wanting_gpus(const Model& model) const;

  // Whether nobody maps its bytes any more.
  [[nodiscard]] static bool is_parked(const Model& model);
  // Whether the worker has the model; of a GPU's, with its bytes.
  [[nodiscard]] static bool is_added(const Model& model, WorkerKey key);
  // Where the bytes are that the worker maps; null: nowhere now.
  [[nodiscard]] const std::vector<Fd>* bytes_for(const Model& model, WorkerKey key) const;
  // Whether a run of some domain waits for its bytes.
  [[nodiscard]] static bool is_wanted(const Model& model);

  // --- workers
  // It is sent what it is to have.
  void worker_ready(WorkerKey key);
  // Gives whether the mapping is given up: workers died whenever they took in the model.
  [[nodiscard]] bool worker_died(Model& model, WorkerKey key, const WorkerDeath& death);
  // Null, as in all of these: nothing has become of a model. A worker that could not add one loses
  // its mapping.
  Model* on_model_added(WorkerKey key, const ipc::ModelAdded& event);
  Model* on_model_parked(WorkerKey key, const ipc::ModelParked& event);
  // Tells a worker that has none that there is none.
  Model* on_model_wanted(WorkerKey key, const ipc::ModelWanted& event);
  Model* on_model_dropped(WorkerKey key, const ipc::ModelDropped& event);

 private:
  // Null if the worker does not have the model, and is not to have it.
  Model* find(WorkerKey key, ModelId id);
  // Sends what the worker is to have: the bytes, or a place for them. Whether they were the bytes:
  // a GPU's worker that is not ready has none, so nobody waits for it to let go of a copy.
  bool send(const Model& model, WorkerKey key);
  // Likewise, to a worker that had let go of the bytes.
  void send_again(const Model& model, WorkerKey key, MappedBy& mapped);
  void let_go(const Model& model, WorkerKey key, MappedBy& mapped);

  ModelTable& table_;
  Domains& domains_;
  CopyOf copy_of_;
};

}  // namespace djinn::daemon
