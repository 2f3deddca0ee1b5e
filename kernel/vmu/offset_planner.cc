// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/offset_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::vmu {
namespace {

using Order = std::vector<uint32_t>;

// This is a lifetime that has its place: [offset, end) during [first, last].
struct Placed {
  uint64_t offset = 0;
  uint64_t end = 0;
  uint32_t first = 0;
  uint32_t last = 0;
};

// Gives the sizes as they are placed: rounded up, so that every offset comes out aligned.
std::vector<Lifetime> rounded(std::span<const Lifetime> lifetimes, uint64_t alignment) {
  std::vector<Lifetime> out(lifetimes.begin(), lifetimes.end());
  uint64_t total = 0;
  for (Lifetime& life : out) {
    DJINN_ASSERT(life.first <= life.last);
    const auto bytes = align_up(life.bytes, alignment);
    DJINN_ASSERT(bytes.has_value());
    const auto sum = checked_add(total, *bytes);
    DJINN_ASSERT(sum.has_value());
    life.bytes = *bytes;
    total = *sum;
  }
  return out;
}

uint64_t peak_of(std::span<const Lifetime> lifetimes) {
  // The bytes of a lifetime go one event after its last one. Events are widened, so that UINT32_MAX
  // is a valid last one.
  std::vector<std::pair<uint64_t, uint64_t>> births, deaths;
  for (const Lifetime& life : lifetimes) {
    births.emplace_back(life.first, life.bytes);
    deaths.emplace_back(uint64_t{life.last} + 1, life.bytes);
  }
  std::sort(births.begin(), births.end());
  std::sort(deaths.begin(), deaths.end());
  uint64_t live = 0, peak = 0;
  size_t dead = 0;
  for (const auto& [event, bytes] : births) {
    for (; dead < deaths.size() && deaths[dead].first <= event; ++dead) live -= deaths[dead].second;
    live += bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

// Gives the lowest offset at which `life` meets none of `placed`, which is sorted by offset.
uint64_t lowest_fit(std::span<const Placed> placed, const Lifetime& life) {
  uint64_t cursor = 0;
  for (const Placed& other : placed) {
    // They are sorted: whatever follows begins behind the gap too, alive or not.
    if (other.offset >= cursor + life.bytes) break;
    // There is one branch and no short circuit, because most of the planner's time is spent here.
    const bool meets = (other.first <= life.last) & (other.last >= life.first);
    if (meets & (other.end > cursor)) cursor = other.end;
  }
  return cursor;
}

OffsetPlan place_in_order(std::span<const Lifetime> lifetimes, const Order& order) {
  OffsetPlan plan;
  plan.offsets.resize(lifetimes.size());
  std::vector<Placed> placed;
  placed.reserve(lifetimes.size());
  for (const uint32_t index : order) {
    const Lifetime& life = lifetimes[index];
    if (life.bytes == 0) continue;
    const uint64_t offset = lowest_fit(placed, life);
    const Placed place{offset, offset + life.bytes, life.first, life.last};
    const auto after = [](uint64_t value, const Placed& other) { return value < other.offset; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset, after), place);
    plan.offsets[index] = offset;
    plan.planned_bytes = std::max(plan.planned_bytes, place.end);
  }
  return plan;
}

template <typename Before>
Order order_by(size_t count, Before before) {
  Order order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), before);
  return order;
}

Order biggest_first(std::span<const Lifetime> lives) {
  return order_by(lives.size(),
                  [=](uint32_t a, uint32_t b) { return lives[a].bytes > lives[b].bytes; });
}

// Nested lifetimes come out as a stack: one that contains another is placed below it, so that the
// plan takes exactly the peak.
Order longest_first(std::span<const Lifetime> lives) {
  return order_by(lives.size(), [=](uint32_t a, uint32_t b) {
    const uint32_t age_a = lives[a].last - lives[a].first, age_b = lives[b].last - lives[b].first;
    return age_a != age_b ? age_a > age_b : lives[a].bytes > lives[b].bytes;
  });
}

Error overlap_error(uint32_t a, uint32_t b) {
  return {ErrorCode::kInternal, fmt::format("the plan lets lifetimes {} and {} share bytes", a, b)};
}

// These are the ranges that live while the checker sweeps through the events, by offset.
class LiveRanges {
 public:
  // Gives the range that [offset, offset + bytes) would overlap, or adds it and gives nothing.
  std::optional<uint32_t> add(uint64_t offset, uint64_t bytes, uint32_t index) {
    const auto next = ranges_.lower_bound(offset);
    if (next != ranges_.end() && next->first - offset < bytes) return next->second.second;
    if (next != ranges_.begin()) {
      const auto& [before, range] = *std::prev(next);
      if (offset - before < range.first) return range.second;
    }
    ranges_.emplace(offset, std::pair(bytes, index));
    return std::nullopt;
  }
  void remove(uint64_t offset) { ranges_.erase(offset); }

 private:
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> ranges_;  // offset: bytes, index
};

}  // namespace

OffsetPlan plan_offsets(std::span<const Lifetime> lifetimes, uint64_t alignment) {
  DJINN_ASSERT(is_power_of_two(alignment));
  DJINN_ASSERT(lifetimes.size() <= UINT32_MAX);
  const std::vector<Lifetime> lives = rounded(lifetimes, alignment);
  const uint64_t peak = peak_of(lives);
  OffsetPlan plan = place_in_order(lives, biggest_first(lives));
  if (plan.planned_bytes > peak) {
    OffsetPlan second = place_in_order(lives, longest_first(lives));
    if (second.planned_bytes < plan.planned_bytes) plan = std::move(second);
  }
  plan.peak_live_bytes = peak;
  DJINN_ASSERT(plan.planned_bytes >= peak);
  return plan;
}

Status check_no_overlap(std::span<const Lifetime> lifetimes, const OffsetPlan& plan) {
  if (plan.offsets.size() != lifetimes.size()) {
    return Error{ErrorCode::kInternal, fmt::format("the plan has {} offsets for {} lifetimes",
                                                   plan.offsets.size(), lifetimes.size())};
  }
  const Order by_birth = order_by(lifetimes.size(), [=](uint32_t a, uint32_t b) {
    return lifetimes[a].first < lifetimes[b].first;
  });
  using Death = std::pair<uint32_t, uint32_t>;  // last, index
  std::priority_queue<Death, std::vector<Death>, std::greater<>> deaths;
  LiveRanges live;
  for (const uint32_t index : by_birth) {
    const Lifetime& life = lifetimes[index];
    if (life.bytes == 0) continue;
    if (!range_fits(plan.offsets[index], life.bytes, plan.planned_bytes)) {
      return Error{ErrorCode::kInternal, fmt::format("lifetime {} leaves the plan", index)};
    }
    for (; !deaths.empty() && deaths.top().first < life.first; deaths.pop()) {
      live.remove(plan.offsets[deaths.top().second]);
    }
    if (const auto other = live.add(plan.offsets[index], life.bytes, index)) {
      return overlap_error(*other, index);
    }
    deaths.emplace(life.last, index);
  }
  return {};
}

}  // namespace djinn::vmu
