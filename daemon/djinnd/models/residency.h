// SPDX-License-Identifier: Apache-2.0

// Residency: where the bytes of models are, and when they move (ARCHITECTURE section 4). On cpu:0 a
// model is resident, or on disk; its next use brings it back. It alone changes a model's phase.
//
//   evict    the bytes go, the model stays: its leases, its place in workers, its programs
//   unload   the model goes; only one that nobody leases
//   want     a model on disk is used: it is read again
//   expiry   an idle model that is not pinned is unloaded when its keep-alive time is over
//
// A comparison of files with a model that leaves is given up, and its loader killed. One that stays
// nevertheless, in a file system that does not answer, is waited for no longer than kLoaderEndsMs:
// what it maps is its own from then on.
//
// invariant: a model's bytes are free when no process maps them any more: each worker has said so
// or is dead, each loader is dead, or was killed and has had their pages taken back, and no copy is
// made of them.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/models/mappings.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/models/weights.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

class Residency final : public Weights {
 public:
  // A process that is killed is gone long before that, unless it waits for a file.
  static constexpr uint64_t kLoaderEndsMs = 1000;

  // What is done with loads and copies, above.
  class Loads {
   public:
    virtual ~Loads() = default;
    virtual void read_again(Model& model) = 0;
    virtual void abort_load(LoadId id) = 0;
    // Kills the loaders that compare files with the model; who opened those goes on without it.
    virtual void end_comparisons(Model& model) = 0;
    // Gives what the model holds to the loaders that still have it.
    virtual void leave_to_loaders(Model& model) = 0;
    // Copies in GPUs' memory: they are to go; whether one is still there.
    virtual void drop_copies(ModelId model) = 0;
    [[nodiscard]] virtual bool has_copies(ModelId model) const = 0;
  };

  Residency(Loop& loop, const Clock& clock, const Devices& devices, Mappings& mappings,
            Replies& replies, Events& events, const Sessions& sessions, ModelTable& table,
            Loads& loads, ModelListener& listener, uint64_t keep_alive_ms);

  // What models stay for that no request said otherwise of.
  void set_keep_alive(uint64_t ms);
  [[nodiscard]] uint64_t keep_alive_of(const Model& model) const;
  // Wall clock; 0 while it does not run out.
  [[nodiscard]] uint64_t expires_at(const Model& model) const;

  // Of a model that the caller may steer; they answer the waiter.
  // user: who asks, for the log.
  void evict(const Waiter& waiter, Model& model, const ipc::EvictModel& request, Owner user);
  void unload(const Waiter& waiter, Model& model, Owner user);

  // --- memory is short
  [[nodiscard]] uint64_t leaving_bytes(DeviceId device) const override {
    return table_.leaving_bytes(device);
  }
  [[nodiscard]] uint64_t held_up_bytes(DeviceId device) const override;
  [[nodiscard]] uint64_t pinned_bytes(DeviceId device) const override;
  // Whether a session that holds the model has a run in flight, or asks for one. device: sessions
  // there alone.
  [[nodiscard]] bool runs(const Model& model, std::optional<DeviceId> device = {}) const;
  // Whether a session of the device holds the model.
  [[nodiscard]] bool is_held_on(const Model& model, DeviceId device) const;
  // Whether the worker of one that has not let go of the model is in a step that goes on for long.
  // device: of workers there alone.
  [[nodiscard]] bool is_held_up(const Model& model, std::optional<DeviceId> device = {}) const;
  // For one model more: while djinnd drains only models that are there already are opened, and an
  // idle one is unloaded where there are too many. Whose models may stay is places.h's.
  // Errors: kBusy, kLimitExceeded.
  Status make_place();

  // It is used, or somebody will. One that not all workers have let go of stays.
  void want(Model& model);
  // A predecessor left its bytes, and they are granted.
  static void taken_back(Model& model);
  // Its bytes were read, and are granted and sealed. Workers that have its place get them.
  void arrived(Model& model);
  // From now on it can come back, if its files stay open.
  void hashed(Model& model, const std::array<uint8_t, 32>& sha256);
  // The source that was read has not given it; the next one is read.
  void try_next_source(Model& model);
  // It could not be brought back.
  void stays_away(Model& model, const LoadFailure& failure);
  // Leases, pins or keep-alive times have changed.
  void review();
  // A worker, the model's loader, or one that compared files with it, has let go of it.
  void let_go(Model& model) { finish_if_free(model); }

 private:
  // A model on its way out.
  struct Leaving {
    EvictReason reason;
    uint64_t since_ns;  // monotonic
    std::optional<Owner> asked_by{};
    bool freeing = false;  // nobody is waited for any more
  };

  // Of those in use only what can come back; in use by sessions of any device.
  [[nodiscard]] std::vector<Candidate> evictable(DeviceId device, bool in_use) const override;
  [[nodiscard]] bool is_run(ModelId model, DeviceId device) const override;
  // It goes to disk, or is unloaded.
  void send_away(ModelId model, DeviceId device) override;
  // Changes the model's phase, as nobody else does. Asserts that it may follow.
  static void enter(Model& model, ModelPhase next) { model.phase.enter(next); }
  void look();
  // Unloads an idle model of the user who owns most models: their least recently used one. False if
  // there is none.
  bool unload_idle();
  void begin_evict(Model& model, EvictReason reason, std::optional<Owner> asked_by = {});
  void begin_unload(Model& model, EvictReason reason, std::optional<Owner> asked_by = {});
  void begin_leaving(Model& model, ModelPhase next, const Leaving& leaving);
  // When its loaders have had their time to end; never, if it has none.
  [[nodiscard]] uint64_t waits_until(const Model& model) const;
  void stay(Model& model);
  void finish_evict(ModelId id);
  void finish_unload(ModelId id);
  void finish_if_free(Model& model);
  void free_then(Model& model, void (Residency::*finish)(ModelId));
  void release(Model& model);
  void emit(EventKind kind, const Model& model, const Leaving& leaving, const char* what);

  const Clock& clock_;
  const Devices& devices_;
  Mappings& mappings_;
  Replies& replies_;
  Events& events_;
  const Sessions& sessions_;
  ModelTable& table_;
  Loads& loads_;
  ModelListener& listener_;
  uint64_t keep_alive_ms_;
  std::map<ModelId, Leaving> leaving_;
  Timer expiry_;
};

}  // namespace djinn::daemon
