// SPDX-License-Identifier: Apache-2.0

// Refs: the storages of one session in its extent: which handles are live, where their bytes lie,
// and where there is room. The table itself is the session's state (kernel/gc); the room is derived
// from it, so a new worker rebuilds it.
//
// A step stages changes: new storages, releases, poison. What it frees is free after its commit
// only, what it allocated is taken back if it fails: end_step() says which.
//
// invariant: ranges of live storages do not overlap and lie inside the committed part of the
// extent.
#pragma once

#include <memory>
#include <vector>

#include "daemon/worker/grants.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/executor/executor.h"
#include "kernel/gc/session_state.h"
#include "kernel/vmu/section.h"

namespace djinn::worker {

class Refs {
 public:
  // memory: what was granted for the session's refs. The state must be recovered; it, pal and
  // grants outlive this. Errors: kMalformed when live storages overlap or leave what was granted.
  static Result<Refs> open(SessionId session, vmu::WindowMemory memory, gc::SessionState& state,
                           pal::DevicePal& pal, Grants& grants);

  struct Storage {
    DeviceAddress data;
    uint64_t bytes = 0;
    uint64_t offset = 0;  // in the extent
  };
  // Bytes of the extent.
  struct Written {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  // A live storage. Errors: kNotFound, kStaleHandle, kPoisoned, kBusy while it is being written.
  Result<Storage> find(const gc::SessionState& state, RefHandle handle) const;
  // One that is being written, of so many bytes. Errors: those of find(), kInvalidArgument.
  Result<Storage> find_partial(const gc::SessionState& state, RefHandle handle,
                               uint64_t bytes) const;
  // Whether the next part of it begins there. Errors: kInvalidArgument.
  static Status check_next_part(const gc::SessionState& state, RefHandle handle, uint64_t offset);
  // Its entry in the table can be staged then. Errors: kInvalidArgument unless the slot is free and
  // the generation newer than all before; kOutOfMemory.
  Status check_free(const gc::SessionState& state, RefHandle handle);

  // --- inside a step
  // Before a run computes: saves what it is about to overwrite (undo log), all of it at once, and
  // finds places for outputs of so many bytes, by number; 0: for none. Memory for all of that is
  // asked for at once. lane: what saves. Pending, and errors: as allocate(), and those of
  // gc::SessionState::save_for_undo().
  Outcome<void> prepare(gc::SessionState& state, std::span<const Written> written,
                        std::vector<uint64_t> outputs, exec::Lane& lane);
  // Where an output may be made. Of any content; no bytes: nowhere.
  [[nodiscard]] Storage place_of(size_t output) const;
  // The output's place becomes a storage, of all its bytes.
  Storage take_place(size_t output);
  // Room for a storage, zeroed. Pending, and errors: as Grants::take(); kQuotaExceeded for more
  // than there is of the section, kOutOfMemory where that is in pieces.
  Outcome<Storage> allocate(uint64_t bytes);
  // Writes a part of a storage that was found or allocated. Errors: those of the pal.
  Status write(const Storage& storage, uint64_t offset, std::span<const std::byte> from);
  void stage_new(gc::SessionState& state, RefHandle handle, const Storage& storage);
  // Likewise, but more steps will write it, from `written` on; stage_new() in the last one.
  void stage_partial(gc::SessionState& state, RefHandle handle, const Storage& storage,
                     uint64_t written);
  // Errors: as find(), but one that is poisoned or being written can be released.
  Status stage_release(gc::SessionState& state, RefHandle handle);
  // handle names no bytes from now on, but the error of the step that failed.
  void stage_poison(gc::SessionState& state, RefHandle handle, ErrorCode error);
  enum class End { kCommitted, kRolledBack };
  void end_step(End end);

  // --- between two steps, or between two operators of one
  // Gives back what is granted and holds no storage, and nothing of a step's.
  void trim();
  // How much that is, about.
  [[nodiscard]] uint64_t idle_bytes() const;

  [[nodiscard]] uint64_t extent_bytes() const { return section_.window().size(); }
  // What steps save and put back.
  [[nodiscard]] gc::UndoExtent extent();

 private:
  // Where the section's grants come from.
  class Source final : public vmu::GrantSource {
   public:
    Source(SessionId session, gc::SessionState& state, pal::DevicePal& pal, Grants& grants)
        : session_(session), state_(state), pal_(pal), grants_(grants) {}
    Outcome<std::vector<vmu::Chunk>> ask(std::span<const vmu::Range> places,
                                         vmu::Amount amount) override;
    void give_back(uint64_t bytes) override;
    void give_back(vmu::Range chunk) override;
    void backed() override;
    // What is not spent goes back.
    void give_back_credit();
    [[nodiscard]] uint64_t credit_bytes() const { return credit_bytes_; }

   private:
    Outcome<void> spend(uint64_t bytes, vmu::Amount amount);

    SessionId session_;
    gc::SessionState& state_;
    pal::DevicePal& pal_;
    Grants& grants_;
    uint64_t credit_bytes_ = 0;  // granted, and not spent yet; where extents have parts
  };

  Refs(std::unique_ptr<Source> source, vmu::PersistentSection section)
      : source_(std::move(source)), section_(std::move(section)) {}
  // What to say of room for so many bytes that was not found.
  [[nodiscard]] Error no_room(uint64_t bytes, Error why) const;
  void give_back(std::vector<vmu::Range>& ranges);
  void give_back_places();
  Status save(gc::SessionState& state, std::span<const gc::UndoEntry> ranges,
              exec::Lane& lane) const;
  void let_go(const gc::SessionState& state, RefHandle handle);
  Status make_pages(const gc::SessionState& state, uint32_t index);

  std::unique_ptr<Source> source_;  // the section points to it
  vmu::PersistentSection section_;
  uint32_t entries_with_pages_ = gc::kRefsAtOnce;  // of the state's table
  std::vector<vmu::Range> allocated_;              // by the running step, for storages
  std::vector<vmu::Range> scratch_;                // by the running step, for saved bytes
  std::vector<Storage> places_;                    // likewise, for outputs that are to come
  std::vector<vmu::Range> released_;               // by the running step
};

}  // namespace djinn::worker
