// SPDX-License-Identifier: Apache-2.0

// Tiers: where the bytes of models are, and when they move (ARCHITECTURE section 4). On cpu:0 a
// model is resident, or on disk; its next use brings it back.
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
// or is dead, and each loader is dead, or was killed and has had their pages taken back.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/work_queue.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/models/model.h"
#include "daemon/djinnd/sessions/spill.h"
#include "daemon/djinnd/workers/domains.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

class Tiers {
 public:
  // A process that is killed is gone long before that, unless it waits for a file.
  static constexpr uint64_t kLoaderEndsMs = 1000;

  struct World {
    Loop& loop;
    const Clock& clock;
    Memory& memory;
    Domains& domains;
    Replies& replies;
    Events& events;
    ModelTable& table;
    Spill& spill;  // what gives way after models
    WorkQueue& memory_work;
    std::function<void(ModelId)> model_gone;  // programs that name it must go first
    std::function<void()> changed;
    std::function<void()> reviewed;  // it was looked what is idle
    std::function<void(Model&)> read_again;
    std::function<bool(SessionId)> runs;  // whether the session has a run in flight
    // Bytes that come free by themselves, of sessions and loads.
    std::function<uint64_t()> others_leave;
    std::function<void(LoadId)> abort_load;
    // Kills the loaders that compare files with the model; who opened those goes on without it.
    std::function<void(Model&)> end_comparisons;
    // Gives what the model holds to the loaders that still have it.
    std::function<void(Model&)> leave_to_loaders;
  };
  Tiers(World world, uint64_t keep_alive_ms);

  // What models stay for that no request said otherwise of.
  void set_keep_alive(uint64_t ms);
  [[nodiscard]] uint64_t keep_alive_of(const Model& model) const;
  // Wall clock; 0 while it does not run out.
  [[nodiscard]] uint64_t expires_at(const Model& model) const;

  // Of a model that the caller may steer; they answer the asker.
  void evict(const Asker& asker, Model& model, const ipc::EvictModel& request);
  void unload(const Asker& asker, Model& model);

  // Begins to free so many bytes, less what comes free by itself: idle models first, then those
  // whose sessions run nothing, then sequence groups of such sessions. False if all of them are not
  // enough; nothing begins then.
  bool make_room(uint64_t bytes);
  // Moves down as long as more than so many bytes are granted: idle models and sequence groups.
  // of_sessions: whatever belongs to sessions that run nothing, too. Whether a model was passed
  // over because its sessions run.
  bool shrink_to(uint64_t bytes, bool of_sessions);
  // Unloads the least recently used idle model. False if there is none.
  bool make_place();
  // Of models that never give way, and of those that would now.
  [[nodiscard]] uint64_t pinned_bytes() const;
  [[nodiscard]] uint64_t evictable_bytes() const;

  // It is used, or somebody will.
  void want(Model& model);
  // It is resident again: workers that have its place get its bytes.
  void came_back(Model& model);
  // It could not be brought back.
  void stays_away(Model& model, const LoadFailure& failure);
  // Leases, pins or keep-alive times have changed.
  void review();
  // The model's loader is gone, or one that compared files with it has let go of it.
  void load_ended(Model& model);

  // --- workers
  void hear(DomainId domain, const ipc::ModelParked& event);
  void hear(DomainId domain, const ipc::ModelWanted& event);
  void hear(DomainId domain, const ipc::ModelDropped& event);
  void worker_died(Model& model, DomainId domain);
  // Sends what the domain's worker is to have: the bytes, or a place for them.
  void send_add(Model& model, DomainId domain);

 private:
  // A model on its way out.
  struct Leaving {
    EvictReason reason;
    uint64_t since_ns;     // monotonic
    bool freeing = false;  // nobody is waited for any more
  };

  void look();
  [[nodiscard]] bool runs(const Model& model) const;
  // Models that may go, and those of sessions that run nothing; in the order in which they do.
  [[nodiscard]] std::vector<Model*> candidates() const;
  void move_down(Model& model, EvictReason reason);
  void begin_evict(Model& model, EvictReason reason);
  void begin_unload(Model& model, EvictReason reason);
  void begin_leaving(Model& model, ModelPhase next, EvictReason reason);
  // When its loaders have had their time to end; never, if it has none.
  [[nodiscard]] uint64_t waits_until(const Model& model) const;
  void finish_evict(ModelId id);
  void finish_unload(ModelId id);
  void finish_if_free(Model& model);
  void free_then(Model& model, void (Tiers::*finish)(ModelId));
  void release(Model& model);
  void tell(EventKind kind, const Model& model, EvictReason reason, const char* what);

  World world_;
  uint64_t keep_alive_ms_;
  std::map<ModelId, Leaving> leaving_;
  Timer expiry_;
};

}  // namespace djinn::daemon
