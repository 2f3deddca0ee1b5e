// SPDX-License-Identifier: Apache-2.0

#include "kernel/gc/sequence_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <vector>

#include "kernel/base/random.h"

namespace djinn::gc {
namespace {

constexpr uint64_t kPage = 4096;

struct Shape {
  uint32_t rows, layers, kv_heads, head_dim, element_bytes;
  uint64_t capacity;
};
void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.rows << " rows, " << s.layers << " layers, " << s.kv_heads << " heads of " << s.head_dim
       << " x " << s.element_bytes << " bytes, capacity " << s.capacity;
}

SequenceLayout layout_of(const Shape& s) {
  return SequenceLayout::make(s.rows, s.layers, s.kv_heads, s.head_dim, s.element_bytes, s.capacity)
      .value();
}

Shape random_shape(Random& random) {
  const auto up_to = [&](uint64_t most) { return static_cast<uint32_t>(1 + random.below(most)); };
  return {up_to(4), up_to(3), up_to(4), up_to(80), 1u << random.below(4), up_to(300)};
}

// A run of token slots in the file: [0, capacity) of one row, or of one row and head of a buffer.
struct Line {
  uint64_t base;
  uint64_t slot_bytes;
};

std::vector<Line> lines_of(const Shape& s, const SequenceLayout& layout) {
  std::vector<Line> lines;
  for (uint32_t row = 0; row < s.rows; ++row) lines.push_back({layout.tokens_offset(row), 4});
  const uint64_t slot = uint64_t{s.head_dim} * s.element_bytes;
  for (uint32_t layer = 0; layer < s.layers; ++layer) {
    for (const uint64_t buffer : {layout.key_offset(layer), layout.value_offset(layer)}) {
      for (uint64_t line = 0; line < uint64_t{s.rows} * s.kv_heads; ++line) {
        lines.push_back({buffer + line * s.capacity * slot, slot});
      }
    }
  }
  return lines;
}

struct Range {
  uint64_t offset, bytes;
  friend auto operator<=>(const Range&, const Range&) = default;
};

std::vector<Range> ranges_of(const SequenceLayout& layout, uint64_t from, uint64_t to) {
  std::vector<Range> ranges;
  EXPECT_TRUE(layout.for_each_range(from, to, [&](uint64_t offset, uint64_t bytes) -> Status {
    ranges.push_back({offset, bytes});
    return {};
  }));
  return ranges;
}

using Pages = std::set<uint64_t>;

void add_pages(Pages& pages, const SequenceLayout& layout, uint64_t from, uint64_t to) {
  for (const Range& range : ranges_of(layout, from, to)) {
    ASSERT_EQ(range.offset % kPage, 0u);
    ASSERT_EQ(range.bytes % kPage, 0u);
    ASSERT_GT(range.bytes, 0u);
    ASSERT_LE(range.offset + range.bytes, layout.file_bytes());
    for (uint64_t at = range.offset; at < range.offset + range.bytes; at += kPage) pages.insert(at);
  }
}

void expect_covered(const Pages& pages, const std::vector<Line>& lines, uint64_t tokens) {
  for (const Line& line : lines) {
    const uint64_t end = line.base + tokens * line.slot_bytes;
    for (uint64_t at = line.base / kPage * kPage; at < end; at += kPage) {
      ASSERT_TRUE(pages.contains(at)) << "page " << at << " of " << tokens << " tokens is missing";
    }
  }
}

TEST(SequenceLayout, growing_in_any_steps_commits_every_page_that_the_tokens_need) {
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    const Shape shape = random_shape(random);
    SCOPED_TRACE(testing::PrintToString(shape));
    const SequenceLayout layout = layout_of(shape);
    Pages pages;
    for (uint64_t tokens = 0; tokens < shape.capacity;) {
      const uint64_t next = std::min(tokens + 1 + random.below(60), shape.capacity);
      ASSERT_NO_FATAL_FAILURE(add_pages(pages, layout, tokens, next));
      tokens = next;
      ASSERT_NO_FATAL_FAILURE(expect_covered(pages, lines_of(shape, layout), tokens));
      ASSERT_LE(pages.size() * kPage, layout.committed_bytes(tokens));
    }
    ASSERT_LE(layout.committed_bytes(shape.capacity), layout.file_bytes());
  }
}

TEST(SequenceLayout, growing_in_steps_visits_what_growing_at_once_does) {
  Random random(2);
  for (int i = 0; i < 200; ++i) {
    const Shape shape = random_shape(random);
    SCOPED_TRACE(testing::PrintToString(shape));
    const SequenceLayout layout = layout_of(shape);
    const uint64_t a = random.below(shape.capacity + 1);
    const uint64_t b = a + random.below(shape.capacity - a + 1);
    Pages stepwise, at_once;
    add_pages(stepwise, layout, 0, a);
    add_pages(stepwise, layout, a, b);
    if (b > 0) add_pages(at_once, layout, 0, b);
    EXPECT_EQ(stepwise, at_once);
  }
}

TEST(SequenceLayout, a_line_is_never_asked_for_the_same_page_twice) {
  // With one row, one head and one layer each buffer is a line, so all ranges must be disjoint.
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    Shape shape = random_shape(random);
    shape.rows = shape.kv_heads = shape.layers = 1;
    SCOPED_TRACE(testing::PrintToString(shape));
    const SequenceLayout layout = layout_of(shape);
    std::vector<Range> ranges;
    for (uint64_t tokens = 0; tokens < shape.capacity;) {
      const uint64_t next = std::min(tokens + 1 + random.below(20), shape.capacity);
      for (const Range& range : ranges_of(layout, tokens, next)) ranges.push_back(range);
      tokens = next;
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t n = 1; n < ranges.size(); ++n) {
      ASSERT_LE(ranges[n - 1].offset + ranges[n - 1].bytes, ranges[n].offset);
    }
  }
}

TEST(SequenceLayout, tokens_keys_and_values_lie_apart_and_within_the_file) {
  Random random(4);
  for (int i = 0; i < 500; ++i) {
    const Shape shape = random_shape(random);
    SCOPED_TRACE(testing::PrintToString(shape));
    const SequenceLayout layout = layout_of(shape);
    std::vector<Line> lines = lines_of(shape, layout);
    std::sort(lines.begin(), lines.end(),
              [](const Line& a, const Line& b) { return a.base < b.base; });
    uint64_t end = 0;
    for (const Line& line : lines) {
      ASSERT_GE(line.base, end);
      end = line.base + shape.capacity * line.slot_bytes;
    }
    ASSERT_LE(end, layout.file_bytes());
  }
}

TEST(SequenceLayout, every_buffer_begins_on_a_page) {
  Random random(5);
  for (int i = 0; i < 500; ++i) {
    const Shape shape = random_shape(random);
    const SequenceLayout layout = layout_of(shape);
    EXPECT_EQ(layout.file_bytes() % kPage, 0u);
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      EXPECT_EQ(layout.key_offset(layer) % kPage, 0u);
      EXPECT_EQ(layout.value_offset(layer) % kPage, 0u);
    }
  }
}

TEST(SequenceLayout, committed_bytes_grow_with_the_tokens) {
  Random random(6);
  for (int i = 0; i < 200; ++i) {
    const Shape shape = random_shape(random);
    const SequenceLayout layout = layout_of(shape);
    EXPECT_EQ(layout.committed_bytes(0), 0u);
    for (uint64_t tokens = 1; tokens <= shape.capacity; ++tokens) {
      ASSERT_GE(layout.committed_bytes(tokens), layout.committed_bytes(tokens - 1));
    }
  }
}

TEST(SequenceLayout, a_visit_that_fails_ends_the_walk_with_its_error) {
  const SequenceLayout layout = layout_of({2, 2, 2, 64, 4, 100});
  int visits = 0;
  const Status walked = layout.for_each_range(0, 50, [&](uint64_t, uint64_t) -> Status {
    if (++visits == 3) return Error{ErrorCode::kOutOfMemory, "no more"};
    return {};
  });
  EXPECT_EQ(walked.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(visits, 3);
}

TEST(SequenceLayout, no_growth_visits_nothing) {
  const SequenceLayout layout = layout_of({2, 2, 2, 64, 4, 100});
  EXPECT_TRUE(ranges_of(layout, 50, 50).empty());
  EXPECT_TRUE(ranges_of(layout, 0, 0).empty());
}

TEST(SequenceLayout, sizes_that_overflow_are_refused) {
  constexpr uint32_t kMany = UINT32_MAX;
  const std::vector<Shape> too_large = {
      {kMany, 1, 1, 1, 1, 1'000'000},
      {1, kMany, 1, 1, 1, uint64_t{1} << 40},
      {1, 1, kMany, kMany, kMany, 1},
      {kMany, kMany, kMany, kMany, kMany, UINT64_MAX},
      {1, 1, 1, 1, 1, UINT64_MAX},
      {1, 1, 1, 1, 1, UINT64_MAX / 4 + 1},
      {2, 1, 1, 1, 1, uint64_t{1} << 63},
      {1, 1, 1, 1, 8, (uint64_t{1} << 37) + 1},
      {1, 1 << 23, 1, 1, 1, uint64_t{1} << 40},
  };
  for (const Shape& s : too_large) {
    SCOPED_TRACE(testing::PrintToString(s));
    const auto layout =
        SequenceLayout::make(s.rows, s.layers, s.kv_heads, s.head_dim, s.element_bytes, s.capacity);
    ASSERT_FALSE(layout);
    EXPECT_EQ(layout.error().code, ErrorCode::kLimitExceeded);
  }
}

TEST(SequenceLayout, a_group_of_nothing_is_refused) {
  for (int zero = 0; zero < 6; ++zero) {
    const auto n = [&](int which) { return zero == which ? 0u : 1u; };
    const auto layout = SequenceLayout::make(n(0), n(1), n(2), n(3), n(4), n(5));
    ASSERT_FALSE(layout);
    EXPECT_EQ(layout.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace djinn::gc
