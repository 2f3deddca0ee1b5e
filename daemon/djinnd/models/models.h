// SPDX-License-Identifier: Apache-2.0

// Models: the catalogue. What is asked for a model is judged here, what a worker says of one is
// passed to whom it concerns, and reports ask here. Below it each thing has one owner:
//
//   pins.h        who wants which model to stay
//   mappings.h    which worker has which model
//   leases.h      which session holds which model, and who waits for one
//   residency.h   where the bytes are, and when they go
//   openings.h    the conversation of an open, returns.h that of a return
//   load_queue.h  the loads of both, and what they hold
//   copies.h      what of them is in the memory of GPUs
#pragma once

#include <set>
#include <vector>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/id_source.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/quotas.h"
#include "daemon/djinnd/models/copies.h"
#include "daemon/djinnd/models/leases.h"
#include "daemon/djinnd/models/load_failures.h"
#include "daemon/djinnd/models/load_queue.h"
#include "daemon/djinnd/models/mappings.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/open_request.h"
#include "daemon/djinnd/models/openings.h"
#include "daemon/djinnd/models/pins.h"
#include "daemon/djinnd/models/places.h"
#include "daemon/djinnd/models/residency.h"
#include "daemon/djinnd/models/returns.h"
#include "daemon/djinnd/models/weights.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/gpu.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "ipc/limits.h"
#include "kernel/base/clock.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Models final : private Residency::Loads, private Copies::Listener {
 public:
  // Of one user's openings and models together: memory that nobody grants.
  static constexpr uint64_t kPlanBytesPerUser = LoadQueue::kLoadsPerUser * limits::kLoadPlanBytes;

  // sessions: who answers clients, too.
  Models(Loop& loop, const Clock& clock, IdSource& ids, SparePool& loaders, const Devices& devices,
         const Quotas& quotas, Domains& domains, Sessions& sessions, Events& events,
         const Gpus& gpus, ModelListener& listener, uint64_t keep_alive_ms);

  // At the start: resident models of a predecessor. One that finds no memory is given up.
  void take_back(std::vector<Model> models);

  // --- requests
  void open(OpenRequest request);
  // Tells who wanted it, and the log.
  void refuse(const OpenRequest& request, const Error& error) { failures_.refuse(request, error); }
  void close(const Waiter& waiter, ModelId id);
  // Whether the user's models, openings, and files that are added to be opened may keep so many
  // more open. Errors: kLimitExceeded.
  [[nodiscard]] Status check_files(Owner domain, size_t added, size_t count) const;
  // Only the owner and administrators may; not what another user has pinned, but for
  // administrators.
  void unload(const Waiter& waiter, const Caller& caller, ModelId id);
  // Of a model that the caller sees; pins.h says what they may.
  void pin(const Waiter& waiter, const Caller& caller, const ipc::PinModel& request);
  void evict(const Waiter& waiter, const Caller& caller, const ipc::EvictModel& request);
  // Of an administrator. device: a GPU of djinnd's.
  void place(const Waiter& waiter, ModelId id, DeviceId device);
  // For who has it open or sees it.
  void read_manifest(const Waiter& waiter, const Caller& caller, const ipc::ReadManifest& request);
  void session_left(SessionId session);

  // --- workers and loaders
  void worker_ready(WorkerKey key) { mappings_.worker_ready(key); }
  void worker_died(WorkerKey key, const WorkerDeath& death);
  void on_model_added(WorkerKey key, const ipc::ModelAdded& event);
  void on_model_parked(WorkerKey key, const ipc::ModelParked& event);
  void on_model_wanted(WorkerKey key, const ipc::ModelWanted& event);
  void on_model_dropped(WorkerKey key, const ipc::ModelDropped& event);
  // No loader can be started: nobody is kept waiting for one.
  void refuse_waiting() { queue_.refuse_waiting(); }

  // --- of sessions
  [[nodiscard]] bool leased_by(ModelId id, SessionId session) const;
  [[nodiscard]] uint32_t leases_of(SessionId session) const;
  // Of the models that it holds; those that are being loaded count what is there.
  [[nodiscard]] uint64_t bytes_shared_by(SessionId session) const;
  // Whether a model that it opens has no memory yet.
  [[nodiscard]] bool lacks_memory_for(SessionId session) const;
  // Whether it waits for a model to be read.
  [[nodiscard]] bool loads_for(SessionId session) const;
  // Whether a run of the session waits for a model to come back.
  [[nodiscard]] bool awaited_by(SessionId session) const;

  // --- of all
  [[nodiscard]] const ModelTable& table() const { return table_; }
  [[nodiscard]] Residency& residency() { return residency_; }
  [[nodiscard]] Copies& copies() { return copies_; }
  [[nodiscard]] const Places& places() const { return places_; }
  [[nodiscard]] const Pins& pins() const { return pins_; }
  // Of those that were taken back: they wait for others to give way.
  [[nodiscard]] const std::set<ModelId>& returning() const { return returning_; }
  // What the device has of models: themselves, or a GPU's copies.
  [[nodiscard]] Weights& weights_on(DeviceId device);
  // Bytes of loads on the device that come free by themselves.
  [[nodiscard]] uint64_t leaving_bytes_of_loads(DeviceId device) const {
    return queue_.leaving_bytes(device);
  }
  [[nodiscard]] uint64_t bytes_read() const { return queue_.bytes_read(); }
  [[nodiscard]] uint64_t compared_opens() const { return openings_.compared(); }
  [[nodiscard]] uint64_t buffered_reads() const { return queue_.buffered_reads(); }
  // That ended with an error, for those who asked for them or for the next source of the model.
  [[nodiscard]] uint64_t loads_failed() const { return failures_.count(); }

 private:
  friend struct DaemonForTests;

  // Whether the user may have a plan of so many bytes more. Errors: kLimitExceeded.
  [[nodiscard]] Status check_plans(Owner domain, uint64_t bytes) const;
  // Whether a load of the request may begin. Errors: why not.
  [[nodiscard]] Status check_open(const OpenRequest& request) const;
  // The model, if the user may steer it. Errors: kNotFound, kPermissionDenied.
  Result<Model*> find_owned(const Caller& caller, ModelId id);
  void has_memory_again(Model model, const Status& granted);

  void read_again(Model& model) override { returns_.read_again(model); }
  void abort_load(LoadId id) override { queue_.abort(id); }
  void end_comparisons(Model& model) override { openings_.end_comparisons(model); }
  void leave_to_loaders(Model& model) override { openings_.leave_to_loaders(model); }
  // A worker has let go of its bytes.
  void let_go(Model& model);
  void drop_copies(ModelId model) override { copies_.drop(model); }
  [[nodiscard]] bool has_copies(ModelId model) const override { return copies_.has(model); }
  void copies_gone(ModelId model) override;
  void copies_changed() override { listener_.models_changed(); }
  void copy_came(ModelId model, DeviceId device) override;
  void copy_leaves(ModelId model, DeviceId device) override;
  void copy_failed(ModelId model, DeviceId device, const Error& why) override;
  [[nodiscard]] bool is_let_go(ModelId model, DeviceId device) const override;
  [[nodiscard]] bool is_held(ModelId model, DeviceId device) const override;
  [[nodiscard]] bool is_run(ModelId model, DeviceId device) const override;
  [[nodiscard]] bool is_held_up(ModelId model, DeviceId device) const override;

  const Clock& clock_;
  const Devices& devices_;
  Replies& replies_;
  Events& events_;
  ModelListener& listener_;
  ModelTable table_;
  Places places_;
  Pins pins_;
  Mappings mappings_;
  LoadQueue queue_;
  Residency residency_;
  LoadFailures failures_;
  Leases leases_;
  Openings openings_;
  Returns returns_;
  Copies copies_;
  std::set<ModelId> returning_;
};

}  // namespace djinn::daemon
