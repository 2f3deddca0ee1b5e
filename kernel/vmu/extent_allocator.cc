// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/extent_allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::vmu {
namespace {

// Gives where in `hole` an aligned range of this many bytes begins, if it fits.
std::optional<uint64_t> place_in(Range hole, uint64_t bytes, uint64_t alignment) {
  const auto begin = align_up(hole.offset, alignment);
  if (!begin || *begin > hole.end() || bytes > hole.end() - *begin) return std::nullopt;
  return begin;
}

bool on_granules(Range range) {
  return range.offset % RangeAllocator::kGranuleBytes == 0 &&
         range.bytes % RangeAllocator::kGranuleBytes == 0 && range.bytes != 0;
}

}  // namespace

RangeAllocator::RangeAllocator(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {
  DJINN_ASSERT(capacity_bytes % kGranuleBytes == 0);
}

Result<RangeAllocator> RangeAllocator::rebuild(uint64_t capacity_bytes,
                                               std::span<const Range> live) {
  std::vector<Range> sorted(live.begin(), live.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  RangeAllocator out(capacity_bytes);
  for (const Range& range : sorted) {
    if (!on_granules(range) || !range_fits(range.offset, range.bytes, capacity_bytes) ||
        range.offset < out.high_water_bytes_) {
      return Error{ErrorCode::kMalformed,
                   fmt::format("[{}, +{}) cannot be a live range: it is misaligned, outside the "
                               "extent or overlaps another",
                               range.offset, range.bytes)};
    }
    out.carve({out.high_water_bytes_, capacity_bytes - out.high_water_bytes_}, range);
    out.add_live(range);
  }
  return out;
}

void RangeAllocator::add_live(Range range) {
  const bool added = live_.emplace(range.offset, range.bytes).second;
  DJINN_ASSERT(added);
  live_bytes_ += range.bytes;
  DJINN_ASSERT(live_bytes_ <= high_water_bytes_ && high_water_bytes_ <= capacity_bytes_);
}

void RangeAllocator::add_free(Range range) {
  if (range.bytes == 0) return;
  free_.emplace(range.offset, range.bytes);
  free_by_size_.emplace(range.bytes, range.offset);
}

void RangeAllocator::remove_free(Range range) {
  free_.erase(range.offset);
  free_by_size_.erase({range.bytes, range.offset});
}

// Takes a range out of a hole that is in no table; what is left over becomes free.
void RangeAllocator::carve(Range hole, Range taken) {
  add_free({hole.offset, taken.offset - hole.offset});
  if (hole.end() <= high_water_bytes_) {
    add_free({taken.end(), hole.end() - taken.end()});
  } else {
    high_water_bytes_ = taken.end();
  }
}

Result<uint64_t> RangeAllocator::find_place(uint64_t bytes, uint64_t alignment) {
  for (auto at = free_by_size_.lower_bound({bytes, 0}); at != free_by_size_.end(); ++at) {
    const Range hole{at->second, at->first};
    if (const auto offset = place_in(hole, bytes, alignment)) {
      remove_free(hole);
      carve(hole, {*offset, bytes});
      return *offset;
    }
  }
  const Range above{high_water_bytes_, capacity_bytes_ - high_water_bytes_};
  if (const auto offset = place_in(above, bytes, alignment)) {
    carve(above, {*offset, bytes});
    return *offset;
  }
  const uint64_t largest =
      free_by_size_.empty() ? above.bytes : std::max(above.bytes, free_by_size_.rbegin()->first);
  return Error{ErrorCode::kOutOfMemory,
               fmt::format("{} are needed in one piece. Of {} {} are free, and {} of them in one "
                           "piece. Release something, then repeat.",
                           size_text(bytes), size_text(capacity_bytes_),
                           size_text(capacity_bytes_ - live_bytes_), size_text(largest))};
}

Result<Range> RangeAllocator::allocate(uint64_t bytes, uint64_t alignment) {
  DJINN_ASSERT(is_power_of_two(alignment));
  if (bytes == 0) return Error{ErrorCode::kInvalidArgument, "a range needs at least one byte"};
  const uint64_t rounded = align_up(bytes, kGranuleBytes).value_or(UINT64_MAX);
  DJINN_TRY(const uint64_t offset, find_place(rounded, std::max(alignment, kGranuleBytes)));
  add_live({offset, rounded});
  return Range{offset, rounded};
}

void RangeAllocator::free(uint64_t offset) {
  const auto found = live_.find(offset);
  DJINN_ASSERT(found != live_.end());
  Range hole{offset, found->second};
  live_.erase(found);
  live_bytes_ -= hole.bytes;

  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const Range before{std::prev(after)->first, std::prev(after)->second};
    if (before.end() == hole.offset) {
      remove_free(before);
      hole = {before.offset, before.bytes + hole.bytes};
    }
  }
  if (const auto next = free_.find(hole.end()); next != free_.end()) {
    const Range behind{next->first, next->second};
    remove_free(behind);
    hole.bytes += behind.bytes;
  }
  if (hole.end() == high_water_bytes_) {
    high_water_bytes_ = hole.offset;
  } else {
    add_free(hole);
  }
}

bool RangeAllocator::is_live(Range range) const {
  const auto found = live_.find(range.offset);
  return found != live_.end() && found->second == range.bytes;
}

}  // namespace djinn::vmu
