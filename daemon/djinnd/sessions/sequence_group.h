// SPDX-License-Identifier: Apache-2.0

// SequenceGroup: the growing state of the rows of one call, in an extent of its own or on disk.
//
//   adding -> live       its worker has taken it in
//   adding -> dropping   the worker could not, or died each time that it tried
//   live -> dropping     its client drops it, or the worker cannot take it in any more
//   dropping -> gone     no worker has it, and its memory is free
//
//   memory -> spilling   a file without a name is made, and the worker fills it
//   spilling -> spilled  the worker said that all is written: the memory is freed
//   spilling -> memory   it could not be written, or the worker died: nothing has changed
//   spilled -> memory    the group's next use: the worker asked for a grant, read the file, and
//                        said so; the file goes
//
// Sequences alone changes phase and place, and what is granted.
//
// invariant: freeing_bytes <= granted_bytes
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "daemon/djinnd/access/replies.h"
#include "ipc/limits.h"
#include "ipc/messages.h"
#include "kernel/base/assert.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/owned_state.h"

namespace djinn::daemon {

// The memory of one that is dropping is freed last: then it has no extent.
enum class GroupPhase : uint8_t { kAdding, kLive, kDropping };
// Pure: the first drawing above as a table.
[[nodiscard]] bool may_follow(GroupPhase from, GroupPhase to);

// Where its bytes are.
enum class GroupPlace : uint8_t { kMemory, kSpilling, kSpilled };
inline constexpr uint8_t kGroupPlaces = 3;
static_assert(kGroupPlaces == static_cast<uint8_t>(GroupPlace::kSpilled) + 1);
// Pure: the second drawing above as a table.
[[nodiscard]] bool may_follow(GroupPlace from, GroupPlace to);

class Sequences;  // sequences.h

struct SequenceGroup {
  SequenceHandle handle;
  ipc::SequenceGeometry geometry;
  OwnedState<GroupPhase, Sequences> phase;
  Fd extent;
  uint64_t extent_bytes = 0;  // all of them mapped by its worker, and few in memory
  Waiter waiter;              // kAdding, kDropping: who waits; no number: nobody
  uint32_t deaths = 0;        // of workers that were about to add it
  OwnedState<GroupPlace, Sequences> place;
  Fd spill_file;                     // kSpilling, kSpilled
  uint64_t spilled_bytes = 0;        // kSpilled: what was granted
  uint64_t spill_not_before_ns = 0;  // after a failure
  uint32_t spill_deaths = 0;         // of workers that were about to spill it
  uint64_t spill_attempt = 0;        // kSpilling: for which its file is made
  // Memory of it that is being freed; who asks for some waits until then.
  uint32_t frees = 0;
  uint64_t freeing_bytes = 0;
  std::vector<ipc::GrantRequest> asks;

  [[nodiscard]] uint64_t granted_bytes() const { return granted_bytes_; }
  // What was granted for it and stays so.
  [[nodiscard]] uint64_t held_bytes() const {
    DJINN_ASSERT(freeing_bytes <= granted_bytes_);
    return granted_bytes_ - freeing_bytes;
  }
  // What of it comes free by itself: all of one that is dropped or on its way to disk.
  [[nodiscard]] uint64_t leaving_bytes() const {
    const bool all = phase == GroupPhase::kDropping || place == GroupPlace::kSpilling;
    return all ? granted_bytes_ : freeing_bytes;
  }
  // What of it is on disk and in no memory that is granted.
  [[nodiscard]] uint64_t aside_bytes() const {
    return place == GroupPlace::kSpilled ? spilled_bytes - std::min(spilled_bytes, granted_bytes_)
                                         : 0;
  }
  // Its worker writes or reads it, or its memory is being freed.
  [[nodiscard]] bool moves() const {
    return place == GroupPlace::kSpilling || (place == GroupPlace::kSpilled && granted_bytes_ > 0);
  }

 private:
  friend class Sequences;
  uint64_t granted_bytes_ = 0;
};

// The slots of a session's sequence groups: handles are chosen here.
class SequenceSlots {
 public:
  // Errors: kLimitExceeded when all slots are taken.
  Result<SequenceGroup*> make(const ipc::SequenceGeometry& geometry);
  // Errors: kNotFound, kStaleHandle. A group that is being dropped is not found.
  Result<SequenceGroup*> find(SequenceHandle handle);
  // Whatever its phase; null if there is none.
  SequenceGroup* lookup(SequenceHandle handle);
  void erase(SequenceHandle handle) { groups_.erase(handle.index); }
  [[nodiscard]] std::map<uint32_t, SequenceGroup>& all() { return groups_; }
  [[nodiscard]] const std::map<uint32_t, SequenceGroup>& all() const { return groups_; }
  [[nodiscard]] size_t size() const { return groups_.size(); }

 private:
  std::map<uint32_t, SequenceGroup> groups_;  // by index
  std::array<uint32_t, limits::kSequences> generations_{};
};

// Checks what a client asked for against limits.h. Errors: kInvalidArgument, kLimitExceeded.
Status check_geometry(const ipc::SequenceGeometry& geometry);

}  // namespace djinn::daemon
