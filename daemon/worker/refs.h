// Refs: the storages of one session in its extent: which handles are live, where their bytes lie, and
// where there is room. The table itself is the session's state (kernel/gc); the room is derived from
// it, so a new worker rebuilds it.
//
// A step stages changes: new storages, releases, poison. What it frees is free after its commit only,
// what it allocated is taken back if it fails: end_step() says which.
//
// invariant: ranges of live storages do not overlap and lie inside the committed part of the extent.
#pragma once

#include <optional>
#include <vector>

#include "daemon/worker/grants.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/gc/session_state.h"
#include "kernel/vmu/section.h"

namespace djinn::worker {

class Refs {
 public:
  // extent: the session's sparse memfd. rebuild() must follow once the state is recovered.
  static Result<Refs> open(const gc::SessionState& state, const ipc::AttachSession& command,
                           Fd extent, Grants& grants);
  void rebuild(const gc::SessionState& state);

  struct Storage {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    uint64_t offset = 0;  // in the extent
  };
  // A live storage. Errors: kNotFound, kStaleHandle, kPoisoned.
  Result<Storage> find(const gc::SessionState& state, RefHandle handle) const;
  // Errors: kInvalidArgument unless the slot is free and the generation newer than all before.
  Status check_free(const gc::SessionState& state, RefHandle handle) const;

  // --- inside a step
  // Room for a storage, zeroed. Errors: kQuotaExceeded, kOutOfMemory.
  Result<Storage> allocate(uint64_t bytes);
  void stage_new(gc::SessionState& state, RefHandle handle, const Storage& storage);
  // Errors: as find(), but a poisoned ref can be released.
  Status stage_release(gc::SessionState& state, RefHandle handle);
  // handle names no bytes from now on, but the error of the step that failed.
  void stage_poison(gc::SessionState& state, RefHandle handle, ErrorCode error);
  // Saves a range that the step is about to overwrite (undo log).
  Status save(gc::SessionState& state, uint64_t offset, uint64_t bytes);

  enum class End { kCommitted, kRolledBack };
  void end_step(End end);

  [[nodiscard]] std::span<std::byte> extent() const;

 private:
  explicit Refs(vmu::PersistentSection section) : section_(std::move(section)) {}

  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  void give_back(std::vector<Range>& ranges);

  vmu::PersistentSection section_;
  std::vector<Range> allocated_;  // by the running step, for storages
  std::vector<Range> scratch_;    // by the running step, for saved bytes
  std::vector<Range> released_;   // by the running step
};

}  // namespace djinn::worker
