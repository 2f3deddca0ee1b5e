// Model: weights in sealed extents, or on their way there; and the table of all.
//
//   loading -> resident     the bytes are there and sealed
//   resident -> unloading   nobody leases it, and memory is wanted or somebody said so
//   loading, unloading -> gone
//
//   lease    a session's hold on a model; the model stays while there is one
//   opener   a request that waits for the model to be there and in its worker
//   mapped   domains whose worker has the model, or is to have it
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/authority.h"
#include "daemon/djinnd/replies.h"
#include "daemon/djinnd/worker_supervisor.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/load/hash.h"
#include "kernel/load/identity.h"

namespace djinn::daemon {

enum class ModelPhase : uint8_t { kLoading, kResident, kUnloading };
[[nodiscard]] bool may_follow(ModelPhase from, ModelPhase to);

// What an open request is compared by (DESIGN section 4, Identity).
struct ModelKey {
  DomainId domain = 0;
  load::Digest plan_hash{};
  std::vector<load::FileIdentity> files;
};
// Whether who opens `opened` may have the model that was made from `resident`. Pure.
[[nodiscard]] bool may_share(const ModelKey& resident, const ModelKey& opened);
// What a loader reported, in kernel/load's terms.
[[nodiscard]] std::vector<load::FileIdentity> identities_of(const ipc::Identified& identified);

struct Opener {
  Asker asker;
  DomainId domain = 0;
  bool needs_worker = true;  // not an observer's
  bool was_resident = false;
};

struct MappedBy {
  bool added = false;   // the present worker has said so
  uint32_t deaths = 0;  // of workers that were about to add it
};

struct Model {
  ModelId id;
  ModelKey key;  // key.domain: who opened it first, its owner
  std::string label;
  ModelPhase phase = ModelPhase::kLoading;
  LoadId load;
  std::vector<Fd> files;  // of the first open: while they are open their inodes are not reused
  std::vector<Fd> extents;
  std::vector<uint64_t> extent_bytes;
  Fd manifest;
  uint64_t bytes = 0;
  uint64_t bytes_loaded = 0;
  bool pinned = false;
  std::optional<std::array<uint8_t, 32>> sha256;
  uint64_t loaded_wall_ns = 0;
  uint64_t last_used = 0;  // a counter, for what to evict first
  std::map<SessionId, uint32_t> leases;
  std::vector<Opener> openers;
  std::map<DomainId, MappedBy> mapped;
  std::vector<Asker> unloaders;

  void go(ModelPhase next);
  [[nodiscard]] bool idle() const {
    return phase == ModelPhase::kResident && leases.empty() && openers.empty();
  }
};

// Whoever uses a model sees it too.
[[nodiscard]] bool seen_by(const Model& model, const Caller& caller);

class ModelTable {
 public:
  Model& add(Model model);
  Model* find(ModelId id);
  Model* find_by_load(LoadId load);
  // A model that the opener may share: loading or resident.
  Model* find_shared(const ModelKey& opened);
  void erase(ModelId id) { models_.erase(id); }
  void touch(Model& model) { model.last_used = ++uses_; }

  // Idle and not pinned, least recently used first.
  [[nodiscard]] std::vector<Model*> evictable();
  [[nodiscard]] uint64_t unloading_bytes() const;
  [[nodiscard]] std::map<ModelId, Model>& all() { return models_; }
  [[nodiscard]] const std::map<ModelId, Model>& all() const { return models_; }
  [[nodiscard]] size_t size() const { return models_.size(); }

 private:
  std::map<ModelId, Model> models_;
  uint64_t uses_ = 0;
};

}  // namespace djinn::daemon
