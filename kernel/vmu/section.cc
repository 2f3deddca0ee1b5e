// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/section.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"

namespace djinn::vmu {

PersistentSection::PersistentSection(Window window, RangeAllocator ranges, Scrub scrub) noexcept
    : window_(std::move(window)), ranges_(std::move(ranges)), scrub_(scrub) {}

Result<PersistentSection> PersistentSection::open(pal::DevicePal& pal, GrantSource& grants,
                                                  WindowMemory memory) {
  return reopen(pal, grants, std::move(memory), {});
}

Result<PersistentSection> PersistentSection::reopen(pal::DevicePal& pal, GrantSource& grants,
                                                    WindowMemory memory,
                                                    std::span<const Range> live) {
  // Capacity counts whole granules; what a device's granularity leaves over is not worth a range.
  const uint64_t capacity = memory.bytes - memory.bytes % RangeAllocator::kGranuleBytes;
  DJINN_TRY(RangeAllocator ranges, RangeAllocator::rebuild(capacity, live));
  std::vector<Range> sorted(live.begin(), live.end());
  std::ranges::sort(sorted, {}, &Range::offset);
  DJINN_TRY(Window window, Window::open(pal, grants, std::move(memory), sorted));
  const Scrub scrub(window.watermark_bytes());
  return PersistentSection(std::move(window), std::move(ranges), scrub);
}

// Who is refused must do with what they hold: what they do not use is given back before the second
// try.
Outcome<void> PersistentSection::cover(std::span<const Range> ranges) {
  Outcome<void> covered = window_.cover(ranges);
  if (is_at_a_limit(covered) && give_back_free() > 0) covered = window_.cover(ranges);
  return covered;
}

Outcome<void> PersistentSection::make_ready(Range range) {
  DJINN_CHECK(cover(std::span(&range, 1)));
  return scrub_.hand_out(window_.pal(), window_.reservation(), range);
}

Outcome<Range> PersistentSection::allocate(uint64_t bytes, uint64_t alignment) {
  DJINN_TRY(const Range range, ranges_.allocate(bytes, alignment));
  if (Outcome<void> ready = make_ready(range); !ready) {
    ranges_.free(range.offset);
    return std::move(ready).why_not();
  }
  DJINN_ASSERT(ranges_.high_water_bytes() <= window_.watermark_bytes());
  return range;
}

// Finds a place for each size, or for none.
Result<std::vector<Range>> PersistentSection::find_places(std::span<const uint64_t> sizes) {
  std::vector<Range> found;
  for (const uint64_t bytes : sizes) {
    const auto range = ranges_.allocate(bytes);
    if (!range) {
      for (const Range& one : found) ranges_.free(one.offset);
      return range.error();
    }
    found.push_back(*range);
  }
  return found;
}

Outcome<std::vector<Range>> PersistentSection::allocate_all(std::span<const uint64_t> sizes) {
  DJINN_TRY(std::vector<Range> found, find_places(sizes));
  uint64_t end_bytes = 0;
  for (const Range& one : found) end_bytes = std::max(end_bytes, one.end());
  if (Outcome<void> ready = cover(found); !ready) {
    for (const Range& one : found) ranges_.free(one.offset);
    return std::move(ready).why_not();
  }
  scrub_.note_used(end_bytes);
  return found;
}

void PersistentSection::free(Range range) {
  DJINN_ASSERT(ranges_.is_live(range));
  ranges_.free(range.offset);
}

uint64_t PersistentSection::give_back_free() {
  return window_.give_back(ranges_.free_ranges(), ranges_.high_water_bytes());
}

DeviceAddress PersistentSection::address(Range range) const {
  DJINN_ASSERT(ranges_.is_live(range));
  return address() + range.offset;
}

Status PersistentSection::copy(uint64_t from, uint64_t to, uint64_t bytes) {
  return window_.pal().copy(window_.reservation(), from, to, bytes);
}

Status PersistentSection::copy_in(uint64_t offset, std::span<const std::byte> from) {
  return window_.pal().copy_in(window_.reservation(), offset, from);
}

}  // namespace djinn::vmu
