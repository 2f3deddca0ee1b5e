// SPDX-License-Identifier: Apache-2.0

// Model: weights in sealed extents, or on their way there or away; and the table of all.
//
//   loading -> resident               the bytes are there and sealed
//   loading -> on disk                it could not come back, or another source is to be tried
//   resident -> evicting -> on disk   memory is wanted or somebody said so; its place in workers
//                                     stays, and so do its programs
//   evicting -> resident              it is used before all its workers have let go
//   on disk -> loading                it is used again; its hash is compared before it is resident
//   resident, on disk -> unloading    nobody leases it, and it is wanted no more
//   loading, unloading -> gone
//
// Residency alone changes the phase.
//
//   lease    a session's hold on a model; the model stays while there is one, resident or not
//   opener   a request that waits for the model to be there and in its worker
//   mapped   workers that have the model, or are to have it
//   source   files that a user opened the model through. Those of the first open stay with it, and
//            their user is its owner; others stay while a session holds it through them
//   return   what was evicted is read again, from one source after the other until one gives it
//
// Users share a model, and their files may change, fall silent, dawdle or lie at any time.
// invariant: nobody's runs depend on what other users do with their files.
//   Who holds a model has a source of their own, and a return tries each source once, those of who
//   waits for it first. So a run fails for want of files only when its user's own have failed too.
//   A source is forgotten only when its files are found to be others, or to hold other bytes; then
//   the next is the owner's, if it was. Whatever else went wrong, it is tried again next time.
// invariant: nobody waits without end for another user's files, but only for their own, and alone.
//   A first load has one source. Who joined it begins anew with their own files when it fails, or
//   when it keeps them too long, and joins no other user's first load then.
//   One user's sources may be silent for kPatience looks, twice as many after each time they were,
//   and come after others' then; whoever waits and was not tried yet is kept from it by another's
//   for kInTheWay looks, silent or not.
// The rest is bounded elsewhere: the descriptors of a user's sources (limits::kModelFilesPerUser),
// the loaders that read them at a time (LoadQueue::kLoadsPerUser), and the memory of loaders that
// were killed and do not end (LoadQueue::take_memory_back).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/access/replies.h"
#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "daemon/djinnd/workers/worker_supervisor.h"
#include "ipc/messages.h"
#include "kernel/base/device_id.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/owned_state.h"
#include "kernel/base/owner.h"
#include "kernel/load/hash.h"
#include "kernel/load/identity.h"

namespace djinn::daemon {

enum class ModelPhase : uint8_t { kLoading, kResident, kEvicting, kOnDisk, kUnloading };
// Pure: the drawing above as a table.
[[nodiscard]] bool may_follow(ModelPhase from, ModelPhase to);
// Where a model is loaded to that is wanted on the device: what computes on a GPU has a copy of it.
[[nodiscard]] constexpr DeviceId home_of(DeviceId device) {
  return device.kind == DeviceKind::kCuda ? kHostDevice : device;
}

class Residency;  // residency.h
class Leases;     // leases.h
class Mappings;   // mappings.h
class Pins;       // pins.h
// Users who want a model to stay.
using PinnedBy = Owned<std::set<Owner>, Pins>;

// Why a model stays where it is: the first of these.
enum class ModelUse : uint8_t { kNone, kMoving, kHeld };
// For who wants it unloaded or evicted; of any but kNone.
[[nodiscard]] Error refusal_of(ModelUse use);

struct Model;
// About its bytes, seen by its owner.
[[nodiscard]] Event event_of(EventKind kind, const Model& model, std::string text,
                             std::optional<ErrorCode> error = {});

// What an open request is compared by (ARCHITECTURE section 4, Identity).
struct ModelKey {
  Owner domain;
  DeviceId device = kHostDevice;  // where it is loaded to
  load::Digest plan_hash{};
  std::vector<load::FileIdentity> files;
};
// Whether who opens `opened` may have the model that was made from `resident`. Pure.
[[nodiscard]] bool may_share(const ModelKey& resident, const ModelKey& opened);
// Whether the bytes of `opened` are worth comparing with those of `resident`, although nothing
// proves them to be the same: within a domain the files look the same, between two they are of the
// same sizes. Memory that was opened cannot be a source, so it is compared with no other user's
// model. Pure.
[[nodiscard]] bool may_compare(const ModelKey& resident, const ModelKey& opened);
// Takes later looks at the files for the first ones, where they prove as much: nothing has changed,
// and nobody has one open for writing. Once the bytes were read or compared again, young files have
// settled. Pure.
void look_again(ModelKey& key, const std::vector<load::FileIdentity>& now);
// What a loader reported, in kernel/load's terms.
[[nodiscard]] std::vector<load::FileIdentity> identities_of(const ipc::Identified& identified);

struct Opener {
  Waiter waiter;
  Owner domain;
  bool needs_worker = true;  // not an observer's
  bool was_resident = false;
  bool pins = false;              // it wants the model to stay
  bool is_admin = false;          // whom no quota of pins binds
  DeviceId device = kHostDevice;  // where it wants the model
  [[nodiscard]] WorkerKey worker() const { return {domain, device}; }
};

// A look is one a second: what djinnd itself sleeps through counts as one.
struct Source {
  static constexpr uint32_t kPatience = 5;      // a slow disk has read a part by then
  static constexpr uint32_t kPatienceMax = 60;  // it has mended itself, or will not
  static constexpr uint32_t kInTheWay = 60;     // a model of 12 GiB at 200 MB/s
  // In which a first load goes on, that others may stay with it for longer: a disk's that is slow.
  static constexpr uint64_t kPaceBytes = uint64_t{32} << 20;

  ModelKey key;  // key.domain: whose they are
  // While they are open their inodes are not reused. Those of the first open that are told by their
  // content are closed when they are read: a client's sealed memory would be held twice.
  std::vector<SharedFd> files;
  std::vector<std::string> file_names;  // as its user calls each, or empty; of one that systemd
                                        // kept none
  std::set<SessionId> sessions;         // that opened the model through these
  LoadId load{};                        // that reads it
  bool tried = false;                   // in the present return
  uint32_t patience = kPatience;
  uint32_t silent = 0;      // looks since it gave anything
  uint32_t in_the_way = 0;  // looks since a user waits whose own were not tried

  [[nodiscard]] Owner user() const { return key.domain; }
  // Whether its bytes can be had again.
  [[nodiscard]] bool is_open() const {
    return !files.empty() && files.size() == key.files.size() &&
           std::ranges::all_of(files, [](const SharedFd& file) { return file != nullptr; });
  }
};

// Why a load of a model failed. Of its files others hear by number: their names are their user's.
struct LoadFailure {
  Error error;
  Owner user;            // whose files were read
  std::string path;      // as they call the place of the files
  std::string sentence;  // the error, with the file's name in place of its number
};

// What a user who opened a model calls it, and the place of its files.
struct ModelName {
  std::string label;
  std::string path;  // or empty
};

// A session's.
struct ModelLease {
  uint32_t count = 0;  // of its opens that it has not closed
  Owner domain;
};

struct MappedBy {
  bool added = false;    // the present worker has said so
  bool parked = false;   // it has the place, without the bytes
  bool parking = false;  // it was told to let go of them, and has not answered
  bool wanted = false;   // a run there waits for the bytes
  uint32_t deaths = 0;   // of workers that were about to add it
};

struct Model {
  ModelId id;
  std::vector<Source> sources = std::vector<Source>(1);  // never none; the owner's is the first
  OwnedState<ModelPhase, Residency> phase;
  LoadId load;
  SharedFd plan;            // sealed, or none
  uint64_t plan_bytes = 0;  // 0 of one that systemd kept, too
  std::vector<Fd> extents;
  std::vector<uint64_t> extent_bytes;
  Fd manifest;
  uint64_t manifest_bytes = 0;
  uint64_t bytes = 0;
  uint64_t bytes_loaded = 0;
  uint64_t huge_bytes = 0;  // of its bytes those that its loader found in huge pages
  PinnedBy pins;
  // How long each user who opened it wants it to stay without a session; nothing: as djinnd is
  // configured. The longest holds.
  std::map<Owner, std::optional<uint64_t>> keep_alives_ms;
  // Of programs for which nobody else chooses, of each user who said them.
  std::map<Owner, srg::Numerics> numerics;
  // As each user who opened it called it, the last time.
  std::map<Owner, ModelName> names;
  uint64_t idle_since_ns = 0;  // monotonic; of idle ones
  bool wanted = false;         // somebody wants it back while it is being evicted
  std::optional<Error> lost;   // why it could not be brought back last time
  std::optional<std::array<uint8_t, 32>> sha256;
  uint64_t loaded_wall_ns = 0;
  uint64_t last_used = 0;  // a counter, for what to evict first
  Owned<std::map<SessionId, ModelLease>, Leases> leases;
  Owned<std::vector<Opener>, Leases> openers;
  Owned<std::map<WorkerKey, MappedBy>, Mappings> mapped;
  // Loaders that have its extents, to compare files with them, until they are dead. They keep it
  // from nothing: files that never answer would.
  std::set<LoadId> compared_by;
  std::vector<Waiter> evict_waiters;  // who wait for it to be evicted or gone

  [[nodiscard]] bool pinned() const { return !pins->empty(); }
  // By another than this user.
  [[nodiscard]] bool pinned_beside(Owner user) const {
    return pins->size() > (pins->contains(user) ? 1 : 0);
  }
  // By a session of another than this user, or by one that is to have it.
  [[nodiscard]] bool held_beside(Owner user) const;
  // The caller's own, or that of an owner whom they may steer; or empty.
  [[nodiscard]] ModelName name_for(const Caller& caller) const;
  // Likewise, or nothing.
  [[nodiscard]] std::optional<srg::Numerics> numerics_for(const Caller& caller) const;
  void call(Owner user, ModelName name);
  [[nodiscard]] bool in_use() const { return !(leases->empty() && openers->empty()); }
  [[nodiscard]] ModelUse use() const;
  // What openings are told apart by.
  [[nodiscard]] const ModelKey& key() const { return sources.front().key; }
  [[nodiscard]] ModelKey& key() { return sources.front().key; }
  [[nodiscard]] Owner owner() const { return key().domain; }
  // Where its bytes are when it is resident.
  [[nodiscard]] DeviceId device() const { return key().device; }

  // The session has opened it through these, which its user calls so.
  void add_source(ModelKey opened, std::vector<SharedFd> files, std::vector<std::string> names,
                  SessionId session);
  void forget_sources_of(SessionId session);
  // Null if the load reads none.
  Source* source_of(LoadId reader);
  // The reader has come so far: its files are not silent.
  void progressed(LoadId reader, uint64_t bytes_read);
  // The one that the session opened it through; null if none is.
  [[nodiscard]] const Source* source_for(SessionId session) const;
  // What a return reads next: nothing if all were tried. Who was silent comes last, who waits
  // first.
  Source* next_source();
  // Counts a look at it. on_files: it is the files' turn to go on.
  void look_at(Source& source, bool on_files);
  // Whether it is to be left for the next.
  [[nodiscard]] bool has_waited_enough_for(const Source& source) const;
  // Of a first load: whether others who joined it are better off with their own files.
  [[nodiscard]] bool keeps_others_waiting(const Source& source) const;
  // The source has not given the model, because of the files or of what serves them.
  void put_aside(Source& source, const Error& error);
  void end_return();
  // It was read: the owner's files that are told by their content are closed.
  void close_contents();
  // One of the user's workers has it, or is to have it.
  [[nodiscard]] bool is_mapped_by(Owner user) const;
  // Whether somebody waits to have it on the device.
  [[nodiscard]] bool has_openers_on(DeviceId device) const;
  // Whether somebody of the user waits for its bytes.
  [[nodiscard]] bool is_awaited_by(Owner user) const;
  // It was resident before, and what is being loaded is what it was.
  [[nodiscard]] bool returns() const { return phase == ModelPhase::kLoading && manifest.valid(); }
  // Whether it is on its way out, and its bytes are still there.
  [[nodiscard]] bool is_leaving() const {
    return phase == ModelPhase::kEvicting || (phase == ModelPhase::kUnloading && !extents.empty());
  }
  // Whether its bytes can be had again, by whomever: all their files are open, and what they must
  // come to is known.
  [[nodiscard]] bool can_come_back() const {
    return sha256.has_value() && std::ranges::all_of(sources, &Source::is_open);
  }

 private:
  void forget_unheld();
};

// Who stands above models and hears of them.
class ModelListener {
 public:
  virtual ~ModelListener() = default;
  // The model goes; what names it must go first.
  virtual void model_gone(ModelId id) = 0;
  // Which models there are, or what is known of one.
  virtual void models_changed() = 0;
};

// Whoever has opened a model, uses it or keeps it in memory sees it too: they had its bytes.
[[nodiscard]] bool seen_by(const Model& model, const Caller& caller);

class ModelTable {
 public:
  Model& add(Model model);
  Model* find(ModelId id);
  Model* find_by_load(LoadId load);
  // A model that the opener may share, loading or resident; none of `other`, and, unless it
  // joins_loads, none that another user is the first to load.
  Model* find_shared(const ModelKey& opened, const std::set<ModelId>& other = {},
                     bool joins_loads = true);
  // A model that is resident, or that the same user loads, whose bytes may be the same; none of
  // `other`. One that was read from the very files comes first.
  Model* find_alike(const ModelKey& opened, const std::set<ModelId>& other);
  void erase(ModelId id) { models_.erase(id); }
  void touch(Model& model) { model.last_used = ++uses_; }

  // Resident on the device, not pinned and not being opened, least recently used first; of those in
  // use only what can come back.
  [[nodiscard]] std::vector<Model*> evictable(DeviceId device, bool in_use);
  // Of models that are on their way out of the device.
  [[nodiscard]] uint64_t leaving_bytes(DeviceId device) const;
  // Of models on the device those that lie in huge pages.
  [[nodiscard]] uint64_t huge_bytes(DeviceId device) const;
  [[nodiscard]] std::map<ModelId, Model>& all() { return models_; }
  [[nodiscard]] const std::map<ModelId, Model>& all() const { return models_; }
  [[nodiscard]] size_t size() const { return models_.size(); }

 private:
  std::map<ModelId, Model> models_;
  uint64_t uses_ = 0;
};

}  // namespace djinn::daemon
