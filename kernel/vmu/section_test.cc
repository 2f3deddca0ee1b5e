// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/section.h"

#include <gtest/gtest.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/base/random.h"
#include "kernel/pal/chunk_pal.h"
#include "kernel/pal/faulty_pal.h"
#include "kernel/pal/host_pal.h"
#include "kernel/pal/process_state.h"
#include "kernel/vmu/grants.h"

namespace djinn::vmu {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kExtentBytes = 64 * kMiB;

// djinnd's side, in this process: a ledger with one holder. device: its extents have no parts, and
// are made as they are granted.
class LedgerSource final : public GrantSource {
 public:
  explicit LedgerSource(uint64_t quota_bytes = 48 * kMiB, pal::DevicePal* device = nullptr)
      : ledger_(kExtentBytes, quota_bytes), device_(device) {}
  // What djinnd hands to a successor.
  WindowMemory memory() {
    WindowMemory memory{kExtentBytes, {}, granted_bytes()};
    for (const auto& [offset, extent] : chunks_) memory.chunks.push_back(copy_of(offset, extent));
    return memory;
  }
  [[nodiscard]] size_t chunks() const { return chunks_.size(); }
  Outcome<std::vector<Chunk>> ask(std::span<const Range> places, Amount amount) override {
    asked_ += 1;
    amounts_.push_back(amount);
    uint64_t bytes = 0;
    for (const Range& place : places) bytes += place.bytes;
    DJINN_CHECK(ledger_.grant(PrincipalId{1}, kHolder, bytes));
    return chunks_of(places);
  }
  void give_back(uint64_t bytes) override {
    ASSERT_EQ(device_, nullptr);
    ASSERT_TRUE(ledger_.acknowledge(kHolder, bytes));
  }
  void give_back(Range chunk) override {
    ASSERT_NE(device_, nullptr);
    const auto given = chunks_.extract(chunk.offset);
    ASSERT_FALSE(given.empty());
    ASSERT_EQ(given.mapped().bytes, chunk.bytes);
    ASSERT_TRUE(ledger_.acknowledge(kHolder, chunk.bytes));
  }
  void backed() override { pieces_ += 1; }
  [[nodiscard]] uint64_t pieces() const { return pieces_; }
  [[nodiscard]] uint64_t granted_bytes() const { return ledger_.granted_bytes(); }
  [[nodiscard]] uint64_t asked() const { return asked_; }
  [[nodiscard]] const std::vector<Amount>& amounts() const { return amounts_; }

 private:
  static constexpr Holder kHolder{HolderKind::kSession, 1};
  Chunk copy_of(uint64_t offset, const pal::Extent& extent) {
    return {offset, device_
                        ->import_extent(device_->export_extent(extent).value(), extent.bytes,
                                        pal::Seals::kNone)
                        .value()};
  }
  Result<std::vector<Chunk>> chunks_of(std::span<const Range> places) {
    std::vector<Chunk> chunks;
    if (device_ == nullptr) return chunks;
    for (const Range& place : places) {
      auto made = device_->create("djinn-test", place.bytes);
      EXPECT_TRUE(made);
      const auto [at, is_new] = chunks_.emplace(place.offset, std::move(made).value());
      EXPECT_TRUE(is_new) << "two chunks in one place";
      chunks.push_back(copy_of(place.offset, at->second));
    }
    return chunks;
  }

  GrantLedger ledger_;
  pal::DevicePal* device_;
  std::map<uint64_t, pal::Extent> chunks_;  // by offset
  uint64_t asked_ = 0;
  uint64_t pieces_ = 0;
  std::vector<Amount> amounts_;
};

// A lane's: the answer is there when it asks once more.
class LaterSource final : public GrantSource {
 public:
  explicit LaterSource(GrantSource& from) : from_(from) {}
  Outcome<std::vector<Chunk>> ask(std::span<const Range> places, Amount amount) override {
    if (!open_) {
      open_.emplace(places.begin(), places.end());
      return Pending{};
    }
    const std::vector<Range> asked = *std::exchange(open_, std::nullopt);
    auto answer = from_.ask(asked, amount);
    EXPECT_TRUE(!answer || std::ranges::equal(asked, places) || takes_others_)
        << "what was granted is not what was needed";
    return answer;
  }
  // The answer may be one to a question that was given up.
  void take_others() { takes_others_ = true; }
  void give_back(uint64_t bytes) override { from_.give_back(bytes); }
  void give_back(Range chunk) override { from_.give_back(chunk); }
  void backed() override { from_.backed(); }

 private:
  GrantSource& from_;
  std::optional<std::vector<Range>> open_;
  bool takes_others_ = false;
};

uint64_t allocated_bytes(const Fd& memfd) {
  struct stat info {};
  EXPECT_EQ(::fstat(memfd.get(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

std::span<std::byte> bytes_of(const PersistentSection& section, Range range) {
  return {section.address(range).on_host(), range.bytes};
}

// Each equals its neighbour: a loop over megabytes would be most of what these tests cost.
bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() || (bytes.front() == value &&
                           ::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

bool all_zero(std::span<const std::byte> bytes) {
  return all_are(bytes, std::byte{0});
}

void soil(std::span<std::byte> bytes) {
  ::memset(bytes.data(), 0xA5, bytes.size());
}

class section : public testing::Test {
 protected:
  // djinnd keeps a descriptor of its own of every extent.
  WindowMemory extent(uint64_t granted_bytes = 0) {
    auto made = pal_->create("djinn-test", kExtentBytes).value();
    kept_ = made.fd.duplicate().value();
    return WindowMemory::whole(std::move(made), granted_bytes);
  }
  WindowMemory extent_again(uint64_t granted_bytes) {
    return WindowMemory::whole(
        pal_->import_extent(kept_.duplicate().value(), kExtentBytes, pal::Seals::kNone).value(),
        granted_bytes);
  }
  PersistentSection open() { return PersistentSection::open(*pal_, grants_, extent()).value(); }

  std::unique_ptr<pal::HostPal> pal_ = pal::HostPal::make().value();
  LedgerSource grants_;
  Fd kept_;
};

TEST_F(section, a_new_one_holds_nothing) {
  const PersistentSection it = open();
  EXPECT_EQ(grants_.granted_bytes(), 0u);
  EXPECT_EQ(allocated_bytes(kept_), 0u);
  EXPECT_EQ(it.window().committed_bytes(), 0u);
}

TEST_F(section, what_is_committed_is_what_is_granted) {
  PersistentSection it = open();
  ASSERT_TRUE(it.allocate(3 * kMiB));
  EXPECT_EQ(it.window().committed_bytes(), 4 * kMiB);
  EXPECT_EQ(grants_.granted_bytes(), 4 * kMiB);
  EXPECT_EQ(allocated_bytes(kept_), 4 * kMiB);
  EXPECT_GT(grants_.pieces(), 0u) << "who asked is told of pages that are there";
}

TEST_F(section, small_ranges_ask_for_a_grant_once_a_step) {
  PersistentSection it = open();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(it.allocate(100));
  EXPECT_EQ(grants_.asked(), 1u);
}

TEST_F(section, answers_that_come_later_end_the_questions) {
  LedgerSource djinnd(5 * kMiB);  // more than what is needed, and less than a step of it
  LaterSource lane(djinnd);
  PersistentSection it = PersistentSection::open(*pal_, lane, extent()).value();
  const auto asks_until_told = [&](uint64_t bytes) {
    for (int asks = 1; asks <= 10; ++asks) {
      const auto range = it.allocate(bytes);
      if (range) return std::pair(ErrorCode::kOk, asks);
      if (range.has_failed()) return std::pair(range.error().code, asks);
    }
    return std::pair(ErrorCode::kTimeout, 10);
  };
  EXPECT_EQ(asks_until_told(4 * kMiB), std::pair(ErrorCode::kOk, 2));
  EXPECT_EQ(asks_until_told(kMiB / 2), std::pair(ErrorCode::kOk, 3))
      << "a step, and what is needed";
  EXPECT_EQ(asks_until_told(kMiB), std::pair(ErrorCode::kQuotaExceeded, 3));
  const std::vector<Amount> amounts{Amount::kNeeded, Amount::kMore, Amount::kNeeded, Amount::kMore,
                                    Amount::kNeeded};
  EXPECT_EQ(djinnd.amounts(), amounts);
  EXPECT_EQ(djinnd.granted_bytes(), 4 * kMiB + kMiB / 2);
}

TEST_F(section, many_ranges_are_asked_for_at_once) {
  PersistentSection it = open();
  const Range before = it.allocate(kMiB).value(), hole = it.allocate(3 * kMiB).value(),
              after = it.allocate(kMiB).value();
  it.free(hole);
  const uint64_t asked = grants_.asked();
  const std::array<uint64_t, 4> sizes{5 * kMiB, 2 * kMiB, 7 * kMiB, 100};
  const auto ranges = it.allocate_all(sizes);
  ASSERT_TRUE(ranges);
  EXPECT_EQ(grants_.asked(), asked + 1);
  uint64_t live = before.bytes + after.bytes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_GE((*ranges)[i].bytes, sizes[i]);
    EXPECT_TRUE(it.ranges().is_live((*ranges)[i]));
    live += (*ranges)[i].bytes;
  }
  EXPECT_EQ(it.ranges().live_bytes(), live);
  EXPECT_EQ((*ranges)[1].offset, hole.offset) << "where there was room";
}

TEST_F(section, what_was_given_at_once_is_zero_for_the_next_who_asks_for_zeros) {
  PersistentSection it = open();
  const std::array<uint64_t, 2> sizes{kMiB, kMiB};
  const std::vector<Range> ranges = it.allocate_all(sizes).value();
  for (const Range& one : ranges) {
    memset(bytes_of(it, one).data(), 0xff, one.bytes);
    it.free(one);
  }
  const Range again = it.allocate(2 * kMiB).value();
  EXPECT_EQ(again.offset, ranges[0].offset);
  EXPECT_TRUE(
      std::ranges::all_of(bytes_of(it, again), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(section, where_there_is_no_room_for_all_nothing_changes) {
  PersistentSection it = open();
  const Range kept = it.allocate(kMiB).value();
  const uint64_t granted = grants_.granted_bytes();
  for (const uint64_t last : {40 * kMiB, 80 * kMiB}) {  // over the quota; over the extent
    const std::array<uint64_t, 2> sizes{20 * kMiB, last};
    EXPECT_FALSE(it.allocate_all(sizes));
    EXPECT_EQ(it.ranges().live_bytes(), kept.bytes);
    EXPECT_EQ(grants_.granted_bytes(), granted);
  }
}

TEST_F(section, a_reused_range_is_zero) {
  PersistentSection it = open();
  const Range first = it.allocate(kMiB).value();
  soil(bytes_of(it, first));
  it.free(first);
  const Range second = it.allocate(kMiB / 2).value();
  EXPECT_EQ(second.offset, first.offset);
  EXPECT_TRUE(all_zero(bytes_of(it, second)));
  const Range third = it.allocate(kMiB).value();  // half used before, half fresh
  EXPECT_TRUE(all_zero(bytes_of(it, third)));
}

TEST_F(section, neighbours_keep_their_bytes) {
  PersistentSection it = open();
  const Range a = it.allocate(1000).value(), b = it.allocate(1000).value(),
              c = it.allocate(1000).value();
  for (const Range& range : {a, b, c}) soil(bytes_of(it, range));
  it.free(b);
  ASSERT_EQ(it.allocate(1000).value(), b);
  EXPECT_FALSE(all_zero(bytes_of(it, a)) || all_zero(bytes_of(it, c)));
  EXPECT_TRUE(std::count(bytes_of(it, a).begin(), bytes_of(it, a).end(), std::byte{0xA5}) == 1024 &&
              std::count(bytes_of(it, c).begin(), bytes_of(it, c).end(), std::byte{0xA5}) == 1024);
}

TEST_F(section, addresses_stay_while_it_grows) {
  PersistentSection it = open();
  const Range first = it.allocate(100).value();
  std::byte* const at = bytes_of(it, first).data();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(it.allocate(kMiB));
  EXPECT_EQ(bytes_of(it, first).data(), at);
}

TEST_F(section, over_the_quota_it_stays_as_it_was) {
  PersistentSection it = open();
  const Range kept = it.allocate(40 * kMiB).value();
  EXPECT_EQ(it.allocate(9 * kMiB).error().code, ErrorCode::kQuotaExceeded);
  EXPECT_EQ(it.ranges().live_bytes(), kept.bytes);
  EXPECT_EQ(grants_.granted_bytes(), 40 * kMiB);
}

TEST_F(section, close_to_the_quota_the_last_step_is_smaller) {
  LedgerSource tight(kMiB);
  auto it = PersistentSection::open(*pal_, tight, extent()).value();
  ASSERT_TRUE(it.allocate(kMiB - 100));
  EXPECT_EQ(tight.granted_bytes(), kMiB);
  EXPECT_EQ(it.allocate(4096).error().code, ErrorCode::kQuotaExceeded);
}

TEST_F(section, a_successor_finds_live_bytes_and_zeroes_the_rest_before_reuse) {
  Range kept, dead;
  {
    PersistentSection it = open();
    kept = it.allocate(kMiB).value();
    dead = it.allocate(kMiB).value();
    soil(bytes_of(it, kept));
    soil(bytes_of(it, dead));
  }
  auto it = PersistentSection::reopen(*pal_, grants_, extent_again(grants_.granted_bytes()),
                                      std::array{kept});
  ASSERT_TRUE(it);
  EXPECT_EQ(bytes_of(*it, kept)[77], std::byte{0xA5});
  const Range again = it->allocate(kMiB).value();
  EXPECT_EQ(again, dead);
  EXPECT_TRUE(all_zero(bytes_of(*it, again)));
  EXPECT_EQ(grants_.asked(), 1u) << "a successor spends the grants of its predecessor";
}

TEST_F(section, a_successor_commits_what_was_granted_to_one_that_died_before_committing) {
  const WindowMemory made = extent();
  ASSERT_TRUE(grants_.ask(std::array{Range{0, 2 * kMiB}}, Amount::kNeeded));
  auto it = PersistentSection::reopen(*pal_, grants_, extent_again(2 * kMiB), {});
  ASSERT_TRUE(it);
  EXPECT_EQ(allocated_bytes(kept_), 2 * kMiB);
}

TEST_F(section, a_successor_refuses_ranges_that_cannot_be) {
  const auto reopen = [&](uint64_t granted, std::vector<Range> live) {
    auto it = PersistentSection::reopen(*pal_, grants_, extent(granted), live);
    return it ? ErrorCode::kOk : it.error().code;
  };
  EXPECT_EQ(reopen(0, {{0, 64}}), ErrorCode::kMalformed);
  EXPECT_EQ(reopen(8192, {{0, 64}, {kMiB, 64}, {2 * kMiB, 64}}), ErrorCode::kMalformed);
  EXPECT_EQ(reopen(2 * kMiB, {{0, 128}, {64, 64}}), ErrorCode::kMalformed);
  EXPECT_EQ(reopen(kExtentBytes + 4096, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(reopen(100, {}), ErrorCode::kInvalidArgument);
}

TEST_F(section, what_is_free_stays_until_it_is_given_back) {
  PersistentSection it = open();
  const Range kept = it.allocate(kMiB).value(), freed = it.allocate(9 * kMiB).value();
  soil(bytes_of(it, kept));
  it.free(freed);
  EXPECT_EQ(grants_.granted_bytes(), 10 * kMiB);
  EXPECT_EQ(it.idle_bytes(), 9 * kMiB);
  EXPECT_EQ(it.give_back_free(), 9 * kMiB);
  EXPECT_EQ(grants_.granted_bytes(), kMiB);
  EXPECT_EQ(allocated_bytes(kept_), kMiB);
  EXPECT_EQ(bytes_of(it, kept)[kMiB - 1], std::byte{0xA5});
  EXPECT_EQ(it.give_back_free(), 0u);
}

TEST_F(section, a_hole_between_live_ranges_is_given_back_and_used_again) {
  PersistentSection it = open();
  const Range a = it.allocate(kMiB + kTensorAlignment).value(),
              hole = it.allocate(4 * kMiB).value(),
              c = it.allocate(kMiB - kTensorAlignment).value();
  for (const Range& range : {a, hole, c}) soil(bytes_of(it, range));
  it.free(hole);
  EXPECT_EQ(it.give_back_free(), 4 * kMiB - 4096) << "the pages that others have a part of stay";
  EXPECT_EQ(grants_.granted_bytes(), 2 * kMiB + 4096);
  EXPECT_EQ(allocated_bytes(kept_), 2 * kMiB + 4096);
  for (const Range& range : {a, c}) {
    EXPECT_EQ(std::ranges::count(bytes_of(it, range), std::byte{0xA5}),
              static_cast<ptrdiff_t>(range.bytes));
  }
  const uint64_t asked = grants_.asked();
  const Range half = it.allocate(2 * kMiB).value(), rest = it.allocate(2 * kMiB).value();
  EXPECT_EQ(half.offset, hole.offset);
  EXPECT_EQ(rest.end(), hole.end());
  EXPECT_TRUE(all_zero(bytes_of(it, half)) && all_zero(bytes_of(it, rest)));
  EXPECT_EQ(grants_.granted_bytes(), 6 * kMiB);
  EXPECT_EQ(allocated_bytes(kept_), 6 * kMiB);
  EXPECT_EQ(grants_.asked(), asked + 2);
}

TEST_F(section, pieces_that_are_not_worth_a_call_stay) {
  PersistentSection it = open();
  std::vector<Range> ranges;
  for (int i = 0; i < 256; ++i) ranges.push_back(it.allocate(Window::kHoleBytesMin / 2).value());
  for (size_t i = 0; i + 1 < ranges.size(); i += 2) it.free(ranges[i]);
  const uint64_t granted = grants_.granted_bytes();
  EXPECT_EQ(it.give_back_free(), 0u);
  EXPECT_EQ(grants_.granted_bytes(), granted);
}

TEST_F(section, who_is_refused_has_to_do_with_what_is_free) {
  PersistentSection it = open();
  const Range freed = it.allocate(20 * kMiB).value(), kept = it.allocate(kMiB).value();
  it.free(freed);
  ASSERT_TRUE(it.allocate(40 * kMiB)) << "too large for what is free, in one piece";
  EXPECT_TRUE(it.ranges().is_live(kept));
  EXPECT_EQ(grants_.granted_bytes(), it.window().committed_bytes());
  EXPECT_EQ(allocated_bytes(kept_), it.window().committed_bytes());
  EXPECT_EQ(it.allocate(21 * kMiB).error().code, ErrorCode::kOutOfMemory);
}

TEST_F(section, a_successor_of_one_with_holes_keeps_what_lives_and_gives_back_the_rest) {
  std::vector<Range> live;
  {
    PersistentSection it = open();
    std::vector<Range> all;
    for (int i = 0; i < 8; ++i) all.push_back(it.allocate(kMiB).value());
    for (const Range& range : all) soil(bytes_of(it, range));
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % 2 == 0) it.free(all[i]);
      if (i % 2 == 1) live.push_back(all[i]);
    }
    EXPECT_EQ(it.give_back_free(), 4 * kMiB);
    // It dies when it has asked for more and committed it, and before any of that is live.
    ASSERT_TRUE(it.allocate(2 * kMiB));
  }
  EXPECT_EQ(grants_.granted_bytes(), 6 * kMiB);
  std::swap(live.front(), live.back());
  auto it = PersistentSection::reopen(*pal_, grants_, extent_again(grants_.granted_bytes()), live);
  ASSERT_TRUE(it) << it.error().message;
  EXPECT_EQ(grants_.granted_bytes(), 4 * kMiB);
  EXPECT_EQ(allocated_bytes(kept_), 4 * kMiB);
  for (const Range& range : live) {
    EXPECT_EQ(std::ranges::count(bytes_of(*it, range), std::byte{0xA5}),
              static_cast<ptrdiff_t>(range.bytes));
  }
  EXPECT_TRUE(all_zero(bytes_of(*it, it->allocate(3 * kMiB).value())));
  EXPECT_EQ(allocated_bytes(kept_), grants_.granted_bytes());
}

TEST_F(section, a_successor_has_no_more_memory_than_is_granted) {
  {
    PersistentSection it = open();
    const Range freed = it.allocate(4 * kMiB).value();
    ASSERT_TRUE(it.allocate(2 * kMiB));
    it.free(freed);
    it.give_back_free();
  }
  EXPECT_EQ(grants_.granted_bytes(), 2 * kMiB);
  auto it = PersistentSection::reopen(*pal_, grants_, extent_again(2 * kMiB), {});
  ASSERT_TRUE(it);
  EXPECT_EQ(allocated_bytes(kept_), 2 * kMiB) << "what was behind it is gone";
}

// `open` and `reopen` give the section, with nothing and with these ranges live; `matches` says
// whether what is there is what is committed.
void live_at_random(uint64_t seed, const LedgerSource& grants,
                    const std::function<PersistentSection(std::span<const Range>)>& open,
                    const std::function<bool(const PersistentSection&)>& matches) {
  Random random(seed);
  PersistentSection it = open({});
  std::vector<std::pair<Range, std::byte>> live;
  for (int step = 0; step < 300; ++step) {
    if (random.below(20) == 0) {
      it.give_back_free();
      ASSERT_TRUE(matches(it)) << seed;
    } else if (random.below(50) == 0) {
      std::vector<Range> ranges;
      for (const auto& [range, mark] : live) ranges.push_back(range);
      it = open(ranges);
      ASSERT_TRUE(matches(it)) << seed;
    } else if (live.empty() || random.below(2) == 0) {
      const auto range = it.allocate(1 + random.below(kMiB));
      if (!range) continue;
      ASSERT_TRUE(all_zero(bytes_of(it, *range))) << seed;
      live.emplace_back(*range, static_cast<std::byte>(1 + random.below(255)));
      ::memset(bytes_of(it, *range).data(), static_cast<int>(live.back().second), range->bytes);
    } else {
      std::swap(live[random.below(live.size())], live.back());
      const auto& [range, mark] = live.back();
      ASSERT_TRUE(all_are(bytes_of(it, range), mark));
      it.free(range);
      live.pop_back();
    }
    ASSERT_EQ(grants.granted_bytes(), it.window().committed_bytes()) << seed;
  }
}

TEST_F(section, random_life_keeps_ranges_zero_at_birth_and_apart) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    LedgerSource grants;
    bool is_new = true;
    const auto open = [&](std::span<const Range> live) {
      WindowMemory memory =
          std::exchange(is_new, false) ? extent() : extent_again(grants.granted_bytes());
      return PersistentSection::reopen(*pal_, grants, std::move(memory), live).value();
    };
    live_at_random(seed, grants, open, [&](const PersistentSection& it) {
      return allocated_bytes(kept_) == it.window().committed_bytes();
    });
  }
}

// --- where extents have no parts

constexpr uint64_t kPage = 2 * kMiB;

class chunked_section : public testing::Test {
 protected:
  PersistentSection open() {
    return PersistentSection::open(*pal_, grants_, grants_.memory()).value();
  }
  Result<PersistentSection> reopen(std::span<const Range> live) {
    return PersistentSection::reopen(*pal_, grants_, grants_.memory(), live);
  }

  std::unique_ptr<pal::ChunkPal> pal_ = pal::ChunkPal::make("fake:0", kPage).value();
  LedgerSource grants_{48 * kMiB, pal_.get()};
};

TEST_F(chunked_section, memory_comes_in_chunks_back_to_back_each_as_large_as_all_before) {
  PersistentSection it = open();
  EXPECT_EQ(grants_.chunks(), 0u);
  std::vector<Range> ranges;
  for (int i = 0; i < 33; ++i) {
    ranges.push_back(it.allocate(kMiB).value());
    soil(bytes_of(it, ranges.back()));
  }
  EXPECT_EQ(grants_.chunks(), 3u) << "of 16, 16 and, within the quota, 16 MiB";
  EXPECT_EQ(grants_.granted_bytes(), it.window().committed_bytes());
  for (size_t i = 0; i + 1 < ranges.size(); ++i) EXPECT_EQ(ranges[i].end(), ranges[i + 1].offset);
  const Range over_two = it.allocate(2 * kMiB).value();
  EXPECT_TRUE(all_zero(bytes_of(it, over_two)));
}

TEST_F(chunked_section, below_a_limit_chunks_are_few) {
  PersistentSection it = open();
  while (it.allocate(kMiB / 2)) {
  }
  EXPECT_EQ(grants_.granted_bytes(), 48 * kMiB) << "to the last page";
  EXPECT_LE(grants_.chunks(), 6u);
}

TEST_F(chunked_section, one_range_may_lie_in_several_chunks) {
  PersistentSection it = open();
  ASSERT_TRUE(it.allocate(15 * kMiB));
  const Range over = it.allocate(3 * kMiB).value();
  EXPECT_EQ(grants_.chunks(), 2u);
  soil(bytes_of(it, over));
  ASSERT_TRUE(it.copy(over.offset, 20 * kMiB, over.bytes));
  std::vector<std::byte> in(over.bytes, std::byte{7});
  ASSERT_TRUE(it.copy_in(over.offset, in));
  EXPECT_TRUE(std::ranges::equal(bytes_of(it, over), in));
}

TEST_F(chunked_section, a_chunk_that_nobody_uses_goes_and_its_place_is_used_again) {
  PersistentSection it = open();
  const Range first = it.allocate(16 * kMiB).value(), second = it.allocate(16 * kMiB).value(),
              third = it.allocate(8 * kMiB).value();
  ASSERT_EQ(grants_.chunks(), 3u);
  for (const Range& range : {first, second, third}) soil(bytes_of(it, range));
  it.free(second);
  EXPECT_EQ(it.give_back_free(), 16 * kMiB);
  EXPECT_EQ(grants_.chunks(), 2u);
  EXPECT_EQ(it.give_back_free(), 0u) << "the last one is in use";
  EXPECT_EQ(bytes_of(it, third)[0], std::byte{0xA5});
  const uint64_t asked = grants_.asked();
  const Range again = it.allocate(3 * kMiB).value();
  EXPECT_EQ(again.offset, second.offset);
  EXPECT_EQ(grants_.asked(), asked + 1);
  EXPECT_EQ(grants_.granted_bytes(), it.window().committed_bytes());
  EXPECT_TRUE(all_zero(bytes_of(it, again)));
  it.free(third);
  it.free(again);
  it.free(first);
  it.give_back_free();
  EXPECT_EQ(grants_.granted_bytes(), 0u);
  EXPECT_EQ(it.window().watermark_bytes(), 0u);
}

TEST_F(chunked_section, a_hole_is_filled_with_one_chunk_however_small_what_comes_is) {
  PersistentSection it = open();
  const Range hole = it.allocate(16 * kMiB).value(), last = it.allocate(kMiB).value();
  it.free(hole);
  it.give_back_free();
  const uint64_t asked = grants_.asked();
  std::vector<uint64_t> sizes(100, 64 << 10);
  ASSERT_TRUE(it.allocate_all(sizes));
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(it.allocate(100 << 10));
  EXPECT_EQ(grants_.asked(), asked + 1);
  EXPECT_EQ(grants_.chunks(), 2u);
  EXPECT_TRUE(it.ranges().is_live(last));
}

TEST_F(chunked_section, holes_that_touch_are_one) {
  PersistentSection it = open();
  std::vector<Range> chunks;
  for (int i = 0; i < 2; ++i) chunks.push_back(it.allocate(16 * kMiB).value());
  const Range last = it.allocate(kMiB).value();
  for (const size_t gone : {1, 0}) {
    it.free(chunks[gone]);
    it.give_back_free();
  }
  EXPECT_EQ(grants_.chunks(), 1u);
  const Range over_both = it.allocate(20 * kMiB).value();
  EXPECT_EQ(over_both.offset, 0u);
  EXPECT_EQ(grants_.chunks(), 2u);
  EXPECT_EQ(grants_.granted_bytes(), it.window().committed_bytes());
  EXPECT_TRUE(it.ranges().is_live(last));
}

TEST_F(chunked_section, below_a_limit_a_hole_gets_what_is_needed) {
  LedgerSource tight(24 * kMiB, pal_.get());
  auto it = PersistentSection::open(*pal_, tight, tight.memory()).value();
  const Range hole = it.allocate(16 * kMiB).value(), last = it.allocate(5 * kMiB).value();
  it.free(hole);
  it.give_back_free();
  ASSERT_EQ(it.window().committed_bytes(), 8 * kMiB);
  ASSERT_TRUE(tight.ask(std::array{Range{40 * kMiB, 10 * kMiB}}, Amount::kNeeded));  // another's
  EXPECT_TRUE(it.allocate(kMiB));
  EXPECT_EQ(it.window().committed_bytes(), 8 * kMiB + kPage);
  EXPECT_TRUE(it.ranges().is_live(last));
}

TEST_F(chunked_section, a_successor_maps_the_chunks_where_they_were) {
  Range kept, dead;
  {
    PersistentSection it = open();
    kept = it.allocate(20 * kMiB).value();
    dead = it.allocate(kMiB).value();
    soil(bytes_of(it, kept));
    soil(bytes_of(it, dead));
  }
  auto it = reopen(std::array{kept});
  ASSERT_TRUE(it) << it.error().message;
  EXPECT_EQ(std::ranges::count(bytes_of(*it, kept), std::byte{0xA5}),
            static_cast<ptrdiff_t>(kept.bytes));
  const Range again = it->allocate(kMiB).value();
  EXPECT_EQ(again, dead);
  EXPECT_TRUE(all_zero(bytes_of(*it, again)));
}

TEST_F(chunked_section, a_successor_refuses_ranges_that_are_in_no_chunk) {
  Range last;
  {
    PersistentSection it = open();
    const Range first = it.allocate(16 * kMiB).value();
    last = it.allocate(kMiB).value();
    it.free(first);
    it.give_back_free();
  }
  const auto code = [&](const std::vector<Range>& live) {
    const auto it = reopen(live);
    return it ? ErrorCode::kOk : it.error().code;
  };
  EXPECT_EQ(code({last}), ErrorCode::kOk);
  EXPECT_EQ(code({{0, 64}}), ErrorCode::kMalformed) << "where one was";
  EXPECT_EQ(code({{40 * kMiB, 64}}), ErrorCode::kMalformed) << "behind all";
}

TEST_F(chunked_section, chunks_that_answer_another_question_are_taken_too) {
  LaterSource lane(grants_);
  lane.take_others();
  PersistentSection it = PersistentSection::open(*pal_, lane, grants_.memory()).value();
  EXPECT_TRUE(it.allocate(kMiB).is_pending());  // and is given up
  EXPECT_TRUE(it.allocate(20 * kMiB).is_pending());
  EXPECT_EQ(it.window().committed_bytes(), 16 * kMiB) << "what the first was for";
  const auto range = it.allocate(20 * kMiB);
  ASSERT_TRUE(range) << range.error().message;
  EXPECT_EQ(grants_.granted_bytes(), it.window().committed_bytes());
}

TEST_F(chunked_section, random_life_keeps_ranges_zero_at_birth_and_apart) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    LedgerSource grants(48 * kMiB, pal_.get());
    const auto open = [&](std::span<const Range> live) {
      return PersistentSection::reopen(*pal_, grants, grants.memory(), live).value();
    };
    live_at_random(seed, grants, open, [](const PersistentSection&) { return true; });
  }
}

// --- faults

// One session's section, that grows twice and hands a range out again.
Outcome<void> whole_life(pal::DevicePal& pal, LedgerSource& session) {
  WindowMemory memory{kExtentBytes, {}, 0};
  if (pal.properties().extents_have_parts) {
    DJINN_TRY(pal::Extent refs, pal.create("djinn-test", kExtentBytes));
    memory = WindowMemory::whole(std::move(refs));
  }
  DJINN_TRY(PersistentSection it, PersistentSection::open(pal, session, std::move(memory)));
  const auto step = [&]() -> Outcome<void> {
    DJINN_TRY(const Range a, it.allocate(kMiB));
    DJINN_TRY(const Range b, it.allocate(3 * kMiB));
    it.free(a);
    DJINN_TRY(const Range c, it.allocate(kMiB / 2));
    it.free(b);
    DJINN_CHECK(it.allocate(8 * kMiB));
    it.free(c);
    it.give_back_free();
    DJINN_CHECK(it.allocate(kMiB));  // where c was, or a
    return {};
  };
  const Outcome<void> stepped = step();
  EXPECT_EQ(session.granted_bytes(), it.window().committed_bytes());
  EXPECT_LE(it.ranges().high_water_bytes(), it.window().watermark_bytes());
  return stepped;
}

// of_device: makes the chunks, and does not fail.
void fail_one_by_one(pal::DevicePal& pal, pal::DevicePal* of_device) {
  pal::FaultyPal faulty(pal);
  const auto live = [&] {
    LedgerSource session(48 * kMiB, of_device);
    return whole_life(faulty, session);
  };
  ASSERT_TRUE(live());
  const uint64_t calls = faulty.calls();
  ASSERT_GE(calls, 4u);
  const pal::ProcessState before = pal::read_process_state();
  uint64_t errors = 0;
  for (uint64_t n = 1; n <= calls; ++n) {
    faulty.fail_call(n, {ErrorCode::kOutOfMemory, "planted"});
    // A step that could not be had whole is asked for again as small as it may be, so that not
    // every fault is seen outside.
    if (const Outcome<void> lived = live(); !lived) {
      EXPECT_EQ(lived.error().code, ErrorCode::kOutOfMemory) << "call " << n;
      errors += 1;
    }
    EXPECT_EQ(pal::read_process_state(), before) << "call " << n;
  }
  EXPECT_GT(errors, calls / 3) << "what cannot be given back stays, and is no error";
}

TEST(section_faults, after_any_single_fault_grants_equal_committed_bytes_and_nothing_is_left) {
  fail_one_by_one(*pal::HostPal::make().value(), nullptr);
}

TEST(section_faults, likewise_of_chunks) {
  const auto chunks = pal::ChunkPal::make("fake:0", kPage).value();
  fail_one_by_one(*chunks, chunks.get());
}

}  // namespace
}  // namespace djinn::vmu
