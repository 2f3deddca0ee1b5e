// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/refs.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/worker/chunks.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"
#include "kernel/pal/memfd.h"

namespace djinn::worker {
namespace {

// Gives the range of the extent that a storage of this many bytes takes; one without bytes has a
// place too.
vmu::Range range_of(uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kGranule = vmu::RangeAllocator::kGranuleBytes;
  // A count that overflows here lies in no extent, as 0 does.
  return {offset, align_up(std::max<uint64_t>(bytes, 1), kGranule).value_or(0)};
}

bool has_storage(const gc::RefEntry& entry) {
  return entry.state == gc::RefState::kLive || entry.state == gc::RefState::kPartial;
}

gc::RefEntry entry_of(gc::RefState state, RefHandle handle, const Refs::Storage& storage) {
  return {state, handle.generation, storage.offset, storage.bytes, 0, 0, 0};
}

}  // namespace

Outcome<std::vector<vmu::Chunk>> Refs::Source::ask(std::span<const vmu::Range> places,
                                                   vmu::Amount amount) {
  if (!pal_.properties().extents_have_parts) {
    return take_chunks(grants_, pal_, ipc::GrantKind::kRefs, session_, places, amount);
  }
  uint64_t bytes = 0;
  for (const vmu::Range& place : places) bytes += place.bytes;
  DJINN_CHECK(spend(bytes, amount));
  return std::vector<vmu::Chunk>();
}

Outcome<void> Refs::Source::spend(uint64_t bytes, vmu::Amount amount) {
  while (credit_bytes_ < bytes) {
    DJINN_TRY(const Grants::Answer answer,
              grants_.take(ipc::GrantKind::kRefs, session_, bytes - credit_bytes_, amount));
    credit_bytes_ += answer.bytes;
  }
  DJINN_ASSERT(credit_bytes_ >= bytes);
  credit_bytes_ -= bytes;
  return {};
}
void Refs::Source::give_back(uint64_t bytes) {
  grants_.give_back(ipc::GrantKind::kRefs, session_, bytes);
}
void Refs::Source::give_back(vmu::Range chunk) {
  grants_.give_back_chunk(ipc::GrantKind::kRefs, session_, {chunk.offset, chunk.bytes});
}
void Refs::Source::backed() {
  state_.beat();
}
void Refs::Source::give_back_credit() {
  if (credit_bytes_ > 0) give_back(std::exchange(credit_bytes_, 0));
}

Result<Refs> Refs::open(SessionId session, vmu::WindowMemory memory, gc::SessionState& state,
                        pal::DevicePal& pal, Grants& grants) {
  std::vector<vmu::Range> live;
  for (uint32_t i = 0; i < state.refs_touched(); ++i) {
    const gc::RefEntry entry = state.ref(i);
    if (has_storage(entry)) live.push_back(range_of(entry.offset, entry.bytes));
  }
  auto source = std::make_unique<Source>(session, state, pal, grants);
  DJINN_TRY(auto section, vmu::PersistentSection::reopen(pal, *source, std::move(memory), live));
  return Refs(std::move(source), std::move(section));
}

void Refs::trim() {
  section_.give_back_free();
  source_->give_back_credit();
}

uint64_t Refs::idle_bytes() const {
  return section_.idle_bytes() + source_->credit_bytes();
}

gc::UndoExtent Refs::extent() {
  return gc::one_by_one(extent_bytes(), [this](uint64_t from, uint64_t to, uint64_t bytes) {
    return section_.copy(from, to, bytes);
  });
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
  if (entry.state == gc::RefState::kPartial) {
    return Error{ErrorCode::kBusy, "The ref is still being written. Write its last part first."};
  }
  DJINN_ASSERT(range_fits(entry.offset, entry.bytes, section_.window().watermark_bytes()));
  return Storage{section_.address() + entry.offset, entry.bytes, entry.offset};
}

Result<Refs::Storage> Refs::find_partial(const gc::SessionState& state, RefHandle handle,
                                         uint64_t bytes) const {
  const auto live = find(state, handle);
  if (!live && live.error().code != ErrorCode::kBusy) return live.error();
  const gc::RefEntry entry = state.ref(handle.index);
  if (live || entry.bytes != bytes) {
    return Error{ErrorCode::kInvalidArgument,
                 "A part goes into a ref that is complete, or of another size. Only what its "
                 "parts make is written in parts."};
  }
  return Storage{section_.address() + entry.offset, entry.bytes, entry.offset};
}

// Parts come in order: a part that skipped bytes would leave a hole in the completed ref.
Status Refs::check_next_part(const gc::SessionState& state, RefHandle handle, uint64_t offset) {
  if (state.ref(handle.index).written == offset) return {};
  return Error{ErrorCode::kInvalidArgument,
               "A part of a write does not begin where the one before it has ended. Write them in "
               "order."};
}

// The table grows ahead of its entries, so that staging one never finds the machine without memory.
Status Refs::make_pages(const gc::SessionState& state, uint32_t index) {
  DJINN_ASSERT(index < state.geometry().refs_max);
  if (index < entries_with_pages_) return {};
  const uint32_t through =
      std::min(std::max(index + 1, 2 * entries_with_pages_), state.geometry().refs_max);
  DJINN_CHECK(pal::populate_write(state.ref_pages(entries_with_pages_, through)));
  entries_with_pages_ = through;
  return {};
}

Status Refs::check_free(const gc::SessionState& state, RefHandle handle) {
  if (!handle.valid() || handle.index >= state.geometry().refs_max) {
    return Error{ErrorCode::kOutOfRange, "A ref's slot is out of range."};
  }
  const gc::RefEntry entry = state.ref(handle.index);
  if (entry.state != gc::RefState::kFree || handle.generation <= entry.generation) {
    return Error{ErrorCode::kInvalidArgument,
                 "A ref's slot is taken, or its generation was used before."};
  }
  return make_pages(state, handle.index);
}

// --- inside a step

Outcome<void> Refs::prepare(gc::SessionState& state, std::span<const Written> written,
                            std::vector<uint64_t> outputs, exec::Lane& lane) {
  DJINN_ASSERT(scratch_.empty() && places_.empty());  // once in a step
  std::vector<uint64_t> sizes;
  for (const Written& one : written) sizes.push_back(one.bytes);
  std::ranges::copy_if(outputs, std::back_inserter(sizes),
                       [](uint64_t bytes) { return bytes > 0; });
  auto found = section_.allocate_all(sizes);
  if (found.has_failed()) {
    uint64_t bytes = 0;  // kept from running over; so much is refused in any case
    for (const uint64_t size : sizes) bytes = checked_add(bytes, size).value_or(UINT64_MAX);
    return no_room(bytes, std::move(found).error());
  }
  DJINN_TRY(const std::vector<vmu::Range> ranges, std::move(found));
  DJINN_ASSERT(ranges.size() == sizes.size());
  std::vector<gc::UndoEntry> to_save;
  auto next = ranges.begin();
  for (const Written& one : written) {
    scratch_.push_back(*next);
    to_save.push_back({one.offset, next->offset, one.bytes});
    ++next;
  }
  for (const uint64_t bytes : outputs) {
    places_.emplace_back();
    if (bytes == 0) continue;
    places_.back() = {section_.address(*next), bytes, next->offset};
    ++next;
  }
  DJINN_ASSERT(next == ranges.end());
  return save(state, to_save, lane);
}

Status Refs::save(gc::SessionState& state, std::span<const gc::UndoEntry> ranges,
                  exec::Lane& lane) const {
  if (ranges.empty()) return {};
  const DeviceAddress first = section_.address();
  const auto copy = [&](std::span<const gc::ExtentCopy> copies) -> Status {
    std::vector<exec::DeviceCopy> on_device;
    for (const gc::ExtentCopy& one : copies) {
      on_device.push_back({first + one.from, first + one.to, one.bytes});
    }
    lane.copy_past_caches(on_device);
    return {};
  };
  return state.save_for_undo({extent_bytes(), copy}, ranges);
}

// The section is as large as the session's quota was when the session began. A request that exceeds
// all free bytes is therefore refused by the quota, one that fits them but no gap as fragmentation.
Error Refs::no_room(uint64_t bytes, Error why) const {
  const vmu::RangeAllocator& ranges = section_.ranges();
  const uint64_t free_bytes = ranges.capacity_bytes() - ranges.live_bytes();
  if (why.code != ErrorCode::kOutOfMemory || bytes <= free_bytes) return why;
  const bool is_quota = ranges.capacity_bytes() < limits::kRefAddressBytes;
  return {ErrorCode::kQuotaExceeded,
          fmt::format("{} are needed, and of the {} that this session's refs may take {} are free. "
                      "Release some{}.",
                      size_text(bytes), size_text(ranges.capacity_bytes()), size_text(free_bytes),
                      is_quota ? ", or ask the administrator for a larger memory.session_quota, if "
                                 "djinnd has more memory than that"
                               : "; no session's may take more")};
}

Refs::Storage Refs::place_of(size_t output) const {
  return output < places_.size() ? places_[output] : Storage{};
}

Refs::Storage Refs::take_place(size_t output) {
  DJINN_ASSERT(output < places_.size() && places_[output].bytes > 0);
  const Storage taken = std::exchange(places_[output], {});
  allocated_.push_back(range_of(taken.offset, taken.bytes));
  return taken;
}

Outcome<Refs::Storage> Refs::allocate(uint64_t bytes) {
  auto found = section_.allocate(std::max<uint64_t>(bytes, 1));
  if (found.has_failed()) return no_room(bytes, std::move(found).error());
  DJINN_TRY(const vmu::Range range, std::move(found));
  allocated_.push_back(range);
  return Storage{section_.address(range), bytes, range.offset};
}

Status Refs::write(const Storage& storage, uint64_t offset, std::span<const std::byte> from) {
  DJINN_ASSERT(range_fits(offset, from.size(), storage.bytes));
  return section_.copy_in(storage.offset + offset, from);
}

void Refs::stage_new(gc::SessionState& state, RefHandle handle, const Storage& storage) {
  DJINN_ASSERT(handle.valid() && handle.index < state.geometry().refs_max);
  state.stage_ref(handle.index, entry_of(gc::RefState::kLive, handle, storage));
}

void Refs::stage_partial(gc::SessionState& state, RefHandle handle, const Storage& storage,
                         uint64_t written) {
  DJINN_ASSERT(handle.valid() && handle.index < state.geometry().refs_max);
  DJINN_ASSERT(written < storage.bytes);
  gc::RefEntry entry = entry_of(gc::RefState::kPartial, handle, storage);
  entry.written = written;
  state.stage_ref(handle.index, entry);
}

// Frees the ref's range of the extent at the end of the step.
void Refs::let_go(const gc::SessionState& state, RefHandle handle) {
  const gc::RefEntry entry = state.ref(handle.index);
  if (entry.generation != handle.generation || !has_storage(entry)) return;
  released_.push_back(range_of(entry.offset, entry.bytes));
}

Status Refs::stage_release(gc::SessionState& state, RefHandle handle) {
  const auto storage = find(state, handle);
  if (!storage && storage.error().code != ErrorCode::kPoisoned &&
      storage.error().code != ErrorCode::kBusy) {
    return storage.error();
  }
  let_go(state, handle);
  state.stage_ref(handle.index, {gc::RefState::kFree, handle.generation, 0, 0, 0, 0, 0});
  return {};
}

void Refs::stage_poison(gc::SessionState& state, RefHandle handle, ErrorCode error) {
  DJINN_ASSERT(handle.valid() && error != ErrorCode::kOk);
  let_go(state, handle);
  state.stage_ref(handle.index, {gc::RefState::kPoisoned, handle.generation, 0, 0,
                                 static_cast<uint32_t>(error), 0, 0});
}

void Refs::end_step(End end) {
  give_back(scratch_);
  give_back_places();
  if (end == End::kCommitted) {
    give_back(released_);
    allocated_.clear();
  } else {
    give_back(allocated_);
    released_.clear();
  }
  DJINN_ASSERT(scratch_.empty() && places_.empty() && allocated_.empty() && released_.empty());
}

void Refs::give_back_places() {
  for (const Storage& one : places_) {
    if (one.bytes > 0) section_.free(range_of(one.offset, one.bytes));
  }
  places_.clear();
}

void Refs::give_back(std::vector<vmu::Range>& ranges) {
  for (const vmu::Range& range : ranges) section_.free(range);
  ranges.clear();
}

}  // namespace djinn::worker
