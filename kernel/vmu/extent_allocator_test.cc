// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernel/base/random.h"

namespace djinn::vmu {
namespace {

constexpr uint64_t kGranule = RangeAllocator::kGranuleBytes;
constexpr uint64_t kCapacity = 1024 * kGranule;

Range take(RangeAllocator& ranges, uint64_t granules) {
  auto range = ranges.allocate(granules * kGranule);
  EXPECT_TRUE(range);
  return range ? *range : Range{};
}

TEST(range_allocator, sizes_are_rounded_to_the_granule) {
  RangeAllocator ranges(kCapacity);
  EXPECT_EQ(ranges.allocate(1).value(), (Range{0, kGranule}));
  EXPECT_EQ(ranges.allocate(kGranule + 1).value(), (Range{kGranule, 2 * kGranule}));
  EXPECT_EQ(ranges.live_bytes(), 3 * kGranule);
  EXPECT_EQ(ranges.high_water_bytes(), 3 * kGranule);
}

TEST(range_allocator, no_bytes_are_refused) {
  RangeAllocator ranges(kCapacity);
  EXPECT_EQ(ranges.allocate(0).error().code, ErrorCode::kInvalidArgument);
}

TEST(range_allocator, the_smallest_hole_that_fits_is_used) {
  RangeAllocator ranges(kCapacity);
  const Range large = take(ranges, 5);
  take(ranges, 1);
  const Range small = take(ranges, 2);
  take(ranges, 1);
  ranges.free(large.offset);
  ranges.free(small.offset);
  EXPECT_EQ(take(ranges, 2).offset, small.offset);
  EXPECT_EQ(take(ranges, 2).offset, large.offset);
}

TEST(range_allocator, freed_neighbours_become_one_range) {
  RangeAllocator ranges(kCapacity);
  const Range a = take(ranges, 1), b = take(ranges, 1), c = take(ranges, 1);
  take(ranges, 1);
  ranges.free(a.offset);
  ranges.free(c.offset);
  ranges.free(b.offset);
  EXPECT_EQ(take(ranges, 3).offset, 0u);
}

TEST(range_allocator, freeing_the_last_range_lowers_the_high_water_past_all_holes) {
  RangeAllocator ranges(kCapacity);
  take(ranges, 1);
  const Range b = take(ranges, 3), c = take(ranges, 2);
  ranges.free(b.offset);
  EXPECT_EQ(ranges.high_water_bytes(), 6 * kGranule);
  ranges.free(c.offset);
  EXPECT_EQ(ranges.high_water_bytes(), kGranule);
}

TEST(range_allocator, alignment_is_met_and_its_gap_stays_usable) {
  RangeAllocator ranges(kCapacity);
  take(ranges, 1);
  const auto aligned = ranges.allocate(kGranule, 16 * kGranule);
  ASSERT_TRUE(aligned);
  EXPECT_EQ(aligned->offset, 16 * kGranule);
  EXPECT_EQ(take(ranges, 15).offset, kGranule);
}

TEST(range_allocator, a_full_extent_is_out_of_memory_with_numbers) {
  RangeAllocator ranges(4 * kGranule);
  take(ranges, 3);
  const auto refused = ranges.allocate(2 * kGranule);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(ranges.allocate(UINT64_MAX).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(ranges.allocate(1, uint64_t{1} << 63).error().code, ErrorCode::kOutOfMemory);
  EXPECT_TRUE(ranges.allocate(kGranule));
}

TEST(range_allocator, freeing_what_does_not_live_is_our_own_fault) {
  RangeAllocator ranges(kCapacity);
  const Range range = take(ranges, 2);
  EXPECT_DEATH(ranges.free(range.offset + kGranule), "assertion failed");
  ranges.free(range.offset);
  EXPECT_DEATH(ranges.free(range.offset), "assertion failed");
}

TEST(range_allocator, ranges_that_cannot_have_lived_are_malformed) {
  const std::vector<std::vector<Range>> bad{
      {{1, kGranule}},                            // misaligned
      {{0, kGranule + 1}},                        // odd size
      {{0, 0}},                                   // nothing
      {{kCapacity, kGranule}},                    // outside
      {{kCapacity - kGranule, 2 * kGranule}},     // half outside
      {{0, UINT64_MAX - kGranule + 1}},           // larger than anything
      {{UINT64_MAX - kGranule + 1, kGranule}},    // at the end of all numbers
      {{0, 2 * kGranule}, {kGranule, kGranule}},  // overlap
      {{0, kGranule}, {0, kGranule}},             // twice
  };
  for (const auto& live : bad) {
    const auto rebuilt = RangeAllocator::rebuild(kCapacity, live);
    ASSERT_FALSE(rebuilt);
    EXPECT_EQ(rebuilt.error().code, ErrorCode::kMalformed);
  }
}

// Everything that the header promises, against one flag for each granule.
class Model {
 public:
  void take(Range range) { mark(range, true); }
  void give(Range range) { mark(range, false); }
  uint64_t live_bytes() const {
    return static_cast<uint64_t>(std::count(used_.begin(), used_.end(), true)) * kGranule;
  }
  uint64_t high_water_bytes() const {
    const auto last = std::find(used_.rbegin(), used_.rend(), true);
    return static_cast<uint64_t>(used_.rend() - last) * kGranule;
  }
  bool has_hole(uint64_t bytes) const {
    const auto hole = std::search_n(used_.begin(), used_.end(), bytes / kGranule, false);
    return hole != used_.end();
  }

 private:
  void mark(Range range, bool used) {
    for (uint64_t at = range.offset / kGranule; at < range.end() / kGranule; ++at) {
      EXPECT_NE(used_[at], used) << "granule " << at;
      used_[at] = used;
    }
  }
  std::vector<bool> used_ = std::vector<bool>(kCapacity / kGranule);
};

TEST(range_allocator, random_sequences_agree_with_a_bitmap_before_and_after_a_rebuild) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    RangeAllocator ranges(kCapacity);
    Model model;
    std::vector<Range> live;
    for (int step = 0; step < 400; ++step) {
      if (live.empty() || random.below(100) < 55) {
        const uint64_t bytes = (1 + random.below(60)) * kGranule;
        if (const auto range = ranges.allocate(bytes)) {
          model.take(*range);
          live.push_back(*range);
        } else {
          EXPECT_FALSE(model.has_hole(bytes)) << "seed " << seed << ": refused what fits";
        }
      } else {
        std::swap(live[random.below(live.size())], live.back());
        ranges.free(live.back().offset);
        model.give(live.back());
        live.pop_back();
      }
      if (random.below(50) == 0) {
        auto rebuilt = RangeAllocator::rebuild(kCapacity, live);
        ASSERT_TRUE(rebuilt);
        ranges = std::move(rebuilt).value();
      }
      ASSERT_EQ(ranges.live_bytes(), model.live_bytes()) << seed;
      ASSERT_EQ(ranges.high_water_bytes(), model.high_water_bytes()) << seed;
    }
    for (const Range& range : live) {
      EXPECT_TRUE(ranges.is_live(range));
      ranges.free(range.offset);
    }
    EXPECT_EQ(ranges.high_water_bytes(), 0u);
    EXPECT_TRUE(ranges.allocate(kCapacity));
  }
}

TEST(range_allocator, random_alignments_are_met_without_overlap) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    RangeAllocator ranges(kCapacity);
    Model model;
    std::vector<Range> live;
    for (int step = 0; step < 200; ++step) {
      const uint64_t alignment = kGranule << random.below(5);
      const auto range = ranges.allocate(1 + random.below(20 * kGranule), alignment);
      if (range) {
        EXPECT_EQ(range->offset % alignment, 0u);
        model.take(*range);
        live.push_back(*range);
      }
      if (!live.empty() && (!range || random.below(2) == 0)) {
        std::swap(live[random.below(live.size())], live.back());
        ranges.free(live.back().offset);
        model.give(live.back());
        live.pop_back();
      }
      ASSERT_EQ(ranges.high_water_bytes(), model.high_water_bytes()) << seed;
    }
  }
}

}  // namespace
}  // namespace djinn::vmu
