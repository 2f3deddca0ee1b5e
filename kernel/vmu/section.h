// SPDX-License-Identifier: Apache-2.0

// PersistentSection: what a worker does with the memory of a session: storages of refs, which
// outlive runs and workers.
//
// invariant: a range that is handed out is committed, and keeps its address. allocate() gives
// zeros; allocate_all() what the session had there before, or zeros: the memory is its alone.
// invariant: live ranges of a section end at or below its window's watermark, and meet no hole.
// invariant: a call that fails leaves the ranges as they were, and what is granted committed.
//
// What is free stays committed, so that nobody who uses it again and again asks for it: it goes
// when the owner says, or where a grant is refused.
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/vmu/extent_allocator.h"
#include "kernel/vmu/scrub.h"
#include "kernel/vmu/window.h"

namespace djinn::vmu {

class PersistentSection {
 public:
  // A new session's: nothing granted, nothing live.
  static Result<PersistentSection> open(pal::DevicePal& pal, GrantSource& grants,
                                        WindowMemory memory);

  // After a worker's death: the same memory, as djinnd has granted it, and the ranges that the
  // state extent says are live. All else counts as used. Errors: kMalformed for ranges that cannot
  // be.
  static Result<PersistentSection> reopen(pal::DevicePal& pal, GrantSource& grants,
                                          WindowMemory memory, std::span<const Range> live);

  // Zeroed bytes, growing the section where needed. Errors: kInvalidArgument for no bytes,
  // kOutOfMemory, kQuotaExceeded, and those of grants and pal. Pending where a grant is.
  Outcome<Range> allocate(uint64_t bytes, uint64_t alignment = RangeAllocator::kGranuleBytes);
  // One range for each size, of any content: the caller writes them before anybody reads them. All
  // that they need is asked for at once, so a caller that must repeat its work where a grant is on
  // its way repeats it once. Errors, and pending: as allocate().
  Outcome<std::vector<Range>> allocate_all(std::span<const uint64_t> sizes);
  void free(Range range);
  // Gives back the memory of what is free. Gives how many bytes went.
  uint64_t give_back_free();
  // The bytes that are committed and no live range's: what give_back_free() gives back at most.
  [[nodiscard]] uint64_t idle_bytes() const {
    return window_.committed_bytes() - ranges_.live_bytes();
  }

  // Of the window's first byte, and of a live range's.
  [[nodiscard]] DeviceAddress address() const { return window_.address(); }
  [[nodiscard]] DeviceAddress address(Range range) const;
  // Copies inside the window, or into it. Errors: those of the pal.
  Status copy(uint64_t from, uint64_t to, uint64_t bytes);
  Status copy_in(uint64_t offset, std::span<const std::byte> from);
  [[nodiscard]] const RangeAllocator& ranges() const noexcept { return ranges_; }
  [[nodiscard]] const Window& window() const noexcept { return window_; }

 private:
  PersistentSection(Window window, RangeAllocator ranges, Scrub scrub) noexcept;
  Outcome<void> cover(std::span<const Range> ranges);
  Outcome<void> make_ready(Range range);
  Result<std::vector<Range>> find_places(std::span<const uint64_t> sizes);

  Window window_;
  RangeAllocator ranges_;
  Scrub scrub_;
};

}  // namespace djinn::vmu
