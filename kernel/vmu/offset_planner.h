// SPDX-License-Identifier: Apache-2.0

// The offset planner: gives each allocation of a recorded run its place in one slab, before the
// run.
//
//   event        an index into the recorded sequence of allocations and frees
//   Lifetime     one allocation: its size and the events between which it is alive, both inclusive
//   OffsetPlan   an offset for each lifetime, in the order given
//
// invariant: two lifetimes of more than zero bytes that share an event share no byte.
// invariant: peak_live_bytes <= planned_bytes; every offset is a multiple of the alignment.
// Greedy placement, big first: Pisarchyk and Lee, "Efficient memory management for deep neural net
// inference" (2020), section 5.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/base/result.h"

namespace djinn::vmu {

struct Lifetime {
  uint64_t bytes = 0;
  uint32_t first = 0;
  uint32_t last = 0;  // inclusive; first <= last
  friend bool operator==(const Lifetime&, const Lifetime&) = default;
};

struct OffsetPlan {
  std::vector<uint64_t> offsets;
  uint64_t planned_bytes = 0;  // what the slab needs; a multiple of the alignment
  // The most that is alive at one event, each size rounded up to the alignment: no plan is smaller.
  uint64_t peak_live_bytes = 0;
  friend bool operator==(const OffsetPlan&, const OffsetPlan&) = default;
};

// Plans by size and, where that misses the peak, by length of life too, and keeps the smaller plan.
// Deterministic. Entries of zero bytes get offset 0 and are in nobody's way. alignment is a power
// of two; the sum of all rounded sizes fits 64 bits. It is at worst quadratic in the count: 8192
// lifetimes take up to 0.2 s, so callers bound it.
[[nodiscard]] OffsetPlan plan_offsets(std::span<const Lifetime> lifetimes, uint64_t alignment);

// Judges a plan without the planner's code: every lifetime lies inside planned_bytes and no two
// that are alive together overlap. Errors: kInternal with the first pair found.
[[nodiscard]] Status check_no_overlap(std::span<const Lifetime> lifetimes, const OffsetPlan& plan);

}  // namespace djinn::vmu
