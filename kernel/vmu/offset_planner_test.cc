// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/offset_planner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernel/base/random.h"

namespace djinn::vmu {
namespace {

constexpr uint64_t kAlignment = 64;

std::vector<Lifetime> random_lifetimes(Random& random, size_t count, uint32_t events,
                                       uint32_t length_max) {
  std::vector<Lifetime> out(count);
  for (Lifetime& life : out) {
    // Sizes over many magnitudes, and some of zero bytes.
    life.bytes = random.below(8) == 0 ? 0 : random.below(uint64_t{1} << (1 + random.below(24)));
    life.first = static_cast<uint32_t>(random.below(events));
    life.last = life.first + static_cast<uint32_t>(random.below(length_max));
  }
  return out;
}

// What a run of nested calls does: allocate, call, free in reverse order.
std::vector<Lifetime> stack_lifetimes(Random& random, size_t count) {
  std::vector<Lifetime> out;
  std::vector<size_t> open;
  uint32_t event = 0;
  while (out.size() < count || !open.empty()) {
    if (!open.empty() && (out.size() == count || random.below(2) == 0)) {
      out[open.back()].last = event++;
      open.pop_back();
    } else {
      open.push_back(out.size());
      out.push_back({1 + random.below(1 << 20), event++, 0});
    }
  }
  return out;
}

uint64_t brute_force_peak(const std::vector<Lifetime>& lives) {
  uint64_t peak = 0;
  for (const Lifetime& at : lives) {
    uint64_t live = 0;
    for (const Lifetime& life : lives) {
      const bool alive = life.first <= at.first && at.first <= life.last;
      if (alive) live += (life.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

TEST(offset_planner, no_lifetimes_need_no_bytes) {
  const OffsetPlan plan = plan_offsets({}, kAlignment);
  EXPECT_EQ(plan, OffsetPlan{});
  EXPECT_TRUE(check_no_overlap({}, plan));
}

TEST(offset_planner, a_lifetime_that_ends_where_another_begins_is_kept_apart) {
  const std::vector<Lifetime> lives{{100, 0, 3}, {100, 3, 5}, {100, 4, 6}};
  const OffsetPlan plan = plan_offsets(lives, kAlignment);
  EXPECT_TRUE(check_no_overlap(lives, plan));
  EXPECT_NE(plan.offsets[0], plan.offsets[1]);
  EXPECT_EQ(plan.offsets[0], plan.offsets[2]);
  EXPECT_EQ(plan.planned_bytes, 256u);
  EXPECT_EQ(plan.peak_live_bytes, 256u);
}

TEST(offset_planner, entries_of_zero_bytes_get_offset_zero_and_hinder_nobody) {
  const std::vector<Lifetime> lives{{0, 0, 9}, {64, 0, 9}, {0, 2, 3}};
  const OffsetPlan plan = plan_offsets(lives, kAlignment);
  EXPECT_EQ(plan.offsets, (std::vector<uint64_t>{0, 0, 0}));
  EXPECT_EQ(plan.planned_bytes, 64u);
  EXPECT_TRUE(check_no_overlap(lives, plan));
}

TEST(offset_planner, the_last_event_number_is_an_ordinary_one) {
  const std::vector<Lifetime> lives{{64, 0, UINT32_MAX}, {64, UINT32_MAX, UINT32_MAX}};
  const OffsetPlan plan = plan_offsets(lives, kAlignment);
  EXPECT_EQ(plan.peak_live_bytes, 128u);
  EXPECT_TRUE(check_no_overlap(lives, plan));
}

TEST(offset_planner, random_lifetimes_never_overlap_and_are_aligned) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const auto events = static_cast<uint32_t>(1 + random.below(300));
    const auto length_max = static_cast<uint32_t>(1 + random.below(60));
    const auto lives = random_lifetimes(random, 1 + random.below(200), events, length_max);
    const uint64_t alignment = uint64_t{1} << random.below(13);
    const OffsetPlan plan = plan_offsets(lives, alignment);
    const Status status = check_no_overlap(lives, plan);
    EXPECT_TRUE(status) << "seed " << seed << ": " << status.error().message;
    EXPECT_GE(plan.planned_bytes, plan.peak_live_bytes);
    EXPECT_EQ(plan.planned_bytes % alignment, 0u);
    for (const uint64_t offset : plan.offsets) EXPECT_EQ(offset % alignment, 0u);
  }
}

TEST(offset_planner, the_reported_peak_is_the_true_one) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const auto lives = random_lifetimes(random, 1 + random.below(100), 100, 30);
    EXPECT_EQ(plan_offsets(lives, kAlignment).peak_live_bytes, brute_force_peak(lives)) << seed;
  }
}

TEST(offset_planner, nested_lifetimes_are_planned_without_any_gap) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    const auto lives = stack_lifetimes(random, 300);
    const OffsetPlan plan = plan_offsets(lives, kAlignment);
    EXPECT_TRUE(check_no_overlap(lives, plan));
    EXPECT_EQ(plan.planned_bytes, plan.peak_live_bytes) << "seed " << seed;
  }
}

TEST(offset_planner, the_same_lifetimes_give_the_same_plan) {
  Random random(7);
  const auto lives = random_lifetimes(random, 500, 400, 50);
  EXPECT_EQ(plan_offsets(lives, kAlignment), plan_offsets(lives, kAlignment));
}

TEST(offset_planner, a_plan_of_random_lifetimes_stays_close_to_the_peak) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const auto lives = random_lifetimes(random, 1000, 3000, 20);
    const OffsetPlan plan = plan_offsets(lives, kAlignment);
    EXPECT_LE(plan.planned_bytes, plan.peak_live_bytes + plan.peak_live_bytes / 2) << seed;
  }
}

// The bound is far above what an idle machine needs: it catches a wrong order of growth.
TEST(offset_planner, twenty_thousand_lifetimes_are_planned_without_an_overlap) {
  Random random(1);
  const auto lives = random_lifetimes(random, 20'000, 20'000, 20'000);
  EXPECT_TRUE(check_no_overlap(lives, plan_offsets(lives, kAlignment)));
}

TEST(check_no_overlap, finds_a_shared_byte) {
  const std::vector<Lifetime> lives{{100, 0, 5}, {100, 5, 9}};
  OffsetPlan plan{{0, 99}, 256, 200};
  EXPECT_EQ(check_no_overlap(lives, plan).error().code, ErrorCode::kInternal);
  plan.offsets[1] = 100;
  EXPECT_TRUE(check_no_overlap(lives, plan));
}

TEST(check_no_overlap, finds_a_lifetime_outside_the_plan) {
  const std::vector<Lifetime> lives{{100, 0, 5}};
  EXPECT_EQ(check_no_overlap(lives, {{1}, 100, 100}).error().code, ErrorCode::kInternal);
  EXPECT_EQ(check_no_overlap(lives, {{UINT64_MAX}, 100, 100}).error().code, ErrorCode::kInternal);
  EXPECT_EQ(check_no_overlap(lives, {{}, 100, 100}).error().code, ErrorCode::kInternal);
}

// A canary: for each pair that lives together, moving one onto the other must be seen.
TEST(check_no_overlap, finds_every_planted_overlap) {
  Random random(3);
  const auto lives = random_lifetimes(random, 60, 40, 20);
  const OffsetPlan good = plan_offsets(lives, kAlignment);
  for (size_t a = 0; a < lives.size(); ++a) {
    for (size_t b = 0; b < lives.size(); ++b) {
      const bool together = lives[a].first <= lives[b].last && lives[b].first <= lives[a].last;
      if (a == b || !together || lives[a].bytes == 0 || lives[b].bytes == 0) continue;
      OffsetPlan bad = good;
      bad.offsets[a] = good.offsets[b];
      bad.planned_bytes = good.planned_bytes * 2 + (1 << 25);
      EXPECT_FALSE(check_no_overlap(lives, bad)) << a << " onto " << b;
    }
  }
}

}  // namespace
}  // namespace djinn::vmu
