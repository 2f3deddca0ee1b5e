#include "daemon/worker/refs.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "kernel/base/checked.h"

namespace djinn::worker {
namespace {

// Grants come in steps, so that a session asks djinnd some dozen times in its life and not once a
// ref.
constexpr uint64_t kGrantStepBytes = uint64_t{1} << 20;

// What a storage of so many bytes takes of the extent.
uint64_t room_for(uint64_t bytes) {
  constexpr uint64_t kGranule = vmu::RangeAllocator::kGranuleBytes;
  // A count that overflows here lies in no extent, as 0 does.
  return align_up(std::max<uint64_t>(bytes, 1), kGranule).value_or(0);
}

}  // namespace

Refs::Refs(SessionId session, Fd memfd, pal::Mapping mapping, uint64_t granted, Grants& grants)
    : session_(session),
      memfd_(std::move(memfd)),
      mapping_(std::move(mapping)),
      granted_(granted),
      grants_(&grants),
      room_(mapping_.size()) {}

Result<Refs> Refs::open(const ipc::AttachSession& command, Fd extent, Grants& grants) {
  DJINN_CHECK(pal::verify_memfd(extent, command.ref_bytes_max, pal::Seals::kSize));
  DJINN_TRY(pal::Mapping mapping,
            pal::map_shared(extent, command.ref_bytes_max, pal::Access::kReadWrite));
  return Refs(command.session, std::move(extent), std::move(mapping), command.ref_bytes_granted,
              grants);
}

Status Refs::rebuild(const gc::SessionState& state) {
  std::vector<vmu::Range> live;
  for (uint32_t i = 0; i < state.geometry().refs_max; ++i) {
    const gc::RefEntry entry = state.ref(i);
    if (entry.state == gc::RefState::kLive) live.push_back({entry.offset, room_for(entry.bytes)});
  }
  DJINN_TRY(room_, vmu::RangeAllocator::rebuild(mapping_.size(), live));
  if (room_.high_water_bytes() > granted_) {
    return Error{ErrorCode::kMalformed, "A storage lies outside what the session was granted."};
  }
  // The former worker may have died between a grant and its pages; committing again is idempotent.
  if (granted_ > 0) DJINN_CHECK(pal::commit_ahead(memfd_, 0, granted_));
  committed_ = granted_;
  return {};
}

Result<Refs::Storage> Refs::find(const gc::SessionState& state, RefHandle handle) const {
  if (!handle.valid() || handle.index >= state.geometry().refs_max) {
    return Error{ErrorCode::kNotFound, "There is no such ref."};
  }
  const gc::RefEntry entry = state.ref(handle.index);
  if (entry.generation != handle.generation || entry.state == gc::RefState::kFree) {
    return Error{
        entry.generation > handle.generation ? ErrorCode::kStaleHandle : ErrorCode::kNotFound,
        "The ref was released, or was never made."};
  }
  if (entry.state == gc::RefState::kPoisoned) {
    const auto cause = static_cast<ErrorCode>(entry.error);
    return Error{ErrorCode::kPoisoned, "The run that would have made or changed this ref failed (" +
                                           std::string(name_of(cause)) + "). Release it."};
  }
  return Storage{mapping_.data() + entry.offset, entry.bytes, entry.offset};
}

Status Refs::check_free(const gc::SessionState& state, RefHandle handle) const {
  if (!handle.valid() || handle.index >= state.geometry().refs_max) {
    return Error{ErrorCode::kOutOfRange, "A ref's slot is out of range."};
  }
  const gc::RefEntry entry = state.ref(handle.index);
  if (entry.state != gc::RefState::kFree || handle.generation <= entry.generation) {
    return Error{ErrorCode::kInvalidArgument,
                 "A ref's slot is taken, or its generation was used before."};
  }
  return {};
}

// --- inside a step

Status Refs::commit(uint64_t bytes) {
  if (bytes <= committed_) return {};
  const uint64_t wanted =
      std::min(*align_up(bytes, kGrantStepBytes), static_cast<uint64_t>(mapping_.size()));
  if (wanted > granted_) {
    DJINN_CHECK(grants_->request(ipc::GrantKind::kRefs, session_, {}, wanted - granted_));
    granted_ = wanted;
  }
  DJINN_CHECK(pal::commit_ahead(memfd_, committed_, wanted - committed_));
  DJINN_CHECK(pal::populate_write(mapping_.bytes().subspan(committed_, wanted - committed_)));
  committed_ = wanted;
  return {};
}

Result<vmu::Range> Refs::take(uint64_t bytes) {
  auto range = room_.allocate(room_for(bytes));
  if (!range) {
    return Error{ErrorCode::kQuotaExceeded,
                 "The session may hold " + std::to_string(mapping_.size()) + " bytes, " +
                     std::to_string(room_.live_bytes()) + " are used, and " +
                     std::to_string(bytes) + " are needed. Release refs you no longer use."};
  }
  if (Status committed = commit(range->end()); !committed) {
    room_.free(range->offset);
    return std::move(committed).error();
  }
  return *range;
}

Result<Refs::Storage> Refs::allocate(uint64_t bytes) {
  DJINN_TRY(const vmu::Range range, take(bytes));
  allocated_.push_back(range);
  memset(mapping_.data() + range.offset, 0, range.bytes);
  return Storage{mapping_.data() + range.offset, bytes, range.offset};
}

void Refs::stage_new(gc::SessionState& state, RefHandle handle, const Storage& storage) {
  state.stage_ref(handle.index,
                  {gc::RefState::kLive, handle.generation, storage.offset, storage.bytes, 0, 0});
}

Status Refs::stage_release(gc::SessionState& state, RefHandle handle) {
  const auto storage = find(state, handle);
  if (!storage && storage.error().code != ErrorCode::kPoisoned) return storage.error();
  if (storage) released_.push_back({storage->offset, storage->bytes});
  state.stage_ref(handle.index, {gc::RefState::kFree, handle.generation, 0, 0, 0, 0});
  return {};
}

void Refs::stage_poison(gc::SessionState& state, RefHandle handle, ErrorCode error) {
  if (const auto storage = find(state, handle)) {
    released_.push_back({storage->offset, storage->bytes});
  }
  state.stage_ref(handle.index, {gc::RefState::kPoisoned, handle.generation, 0, 0,
                                 static_cast<uint32_t>(error), 0});
}

Status Refs::save(gc::SessionState& state, uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return {};
  DJINN_TRY(const vmu::Range range, take(bytes));
  scratch_.push_back(range);
  return state.save_for_undo(extent(), {offset, range.offset, bytes});
}

void Refs::end_step(End end) {
  give_back(scratch_);
  if (end == End::kCommitted) {
    give_back(released_);
    allocated_.clear();
  } else {
    give_back(allocated_);
    released_.clear();
  }
}

void Refs::give_back(std::vector<vmu::Range>& ranges) {
  for (const vmu::Range& range : ranges) room_.free(range.offset);
  ranges.clear();
}

}  // namespace djinn::worker
