// SPDX-License-Identifier: Apache-2.0

// RangeAllocator: hands out ranges of one extent. It knows offsets only: whoever owns the extent
// commits memory beneath them and keeps, in the state extent, which of them live.
//
//   range        offset and size in bytes, both multiples of kGranuleBytes
//   high water   the end of the last live range; above it all is free and may be given back
//
// invariant: live ranges do not overlap and lie below capacity; free ranges below the high water
// are maximal, none touches another; live + free below the high water == high water.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "kernel/base/alignment.h"
#include "kernel/base/result.h"

namespace djinn::vmu {

struct Range {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  [[nodiscard]] uint64_t end() const noexcept { return offset + bytes; }
  friend bool operator==(const Range&, const Range&) = default;
};

class RangeAllocator {
 public:
  static constexpr uint64_t kGranuleBytes = kTensorAlignment;

  // capacity_bytes is a multiple of kGranuleBytes.
  explicit RangeAllocator(uint64_t capacity_bytes);

  // After a crash: the allocator in which exactly these ranges live. They come from shared memory,
  // so they are judged. Errors: kMalformed.
  static Result<RangeAllocator> rebuild(uint64_t capacity_bytes, std::span<const Range> live);

  // The smallest free range that fits, else above the high water. The size is rounded up to
  // kGranuleBytes; alignment is a power of two. Errors: kInvalidArgument for no bytes,
  // kOutOfMemory.
  Result<Range> allocate(uint64_t bytes, uint64_t alignment = kGranuleBytes);

  // Ends the live range that begins there.
  void free(uint64_t offset);

  [[nodiscard]] bool is_live(Range range) const;
  // Offset and bytes of what is free below the high water.
  [[nodiscard]] const std::map<uint64_t, uint64_t>& free_ranges() const noexcept { return free_; }
  [[nodiscard]] uint64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  [[nodiscard]] uint64_t live_bytes() const noexcept { return live_bytes_; }
  [[nodiscard]] uint64_t high_water_bytes() const noexcept { return high_water_bytes_; }

 private:
  Result<uint64_t> find_place(uint64_t bytes, uint64_t alignment);
  void add_live(Range range);
  void add_free(Range range);
  void remove_free(Range range);
  void carve(Range hole, Range taken);

  uint64_t capacity_bytes_ = 0;
  uint64_t high_water_bytes_ = 0;
  uint64_t live_bytes_ = 0;
  std::unordered_map<uint64_t, uint64_t> live_;           // offset: bytes
  std::map<uint64_t, uint64_t> free_;                     // offset: bytes; below the high water
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;  // bytes, offset: the same ranges
};

}  // namespace djinn::vmu
