// SPDX-License-Identifier: Apache-2.0

// TimeHistogram: how often something took how long, in fixed buckets of nanoseconds. The bounds are
// the same in every process, so that counts of several add up.
//
//   bound    what a bucket's times do not exceed; 1, 2.5 and 5 of each power of ten
//   counts   of each bucket alone, not of those below it; the last is of times beyond all bounds
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace djinn::ipc {

// The bounds reach from 10 us, a warm step, to 500 s, the load of a large model from a slow disk.
inline constexpr std::array<uint64_t, 24> kTimeBoundsNs = {
    10'000,         25'000,          50'000,          100'000,        250'000,
    500'000,        1'000'000,       2'500'000,       5'000'000,      10'000'000,
    25'000'000,     50'000'000,      100'000'000,     250'000'000,    500'000'000,
    1'000'000'000,  2'500'000'000,   5'000'000'000,   10'000'000'000, 25'000'000'000,
    50'000'000'000, 100'000'000'000, 250'000'000'000, 500'000'000'000};
inline constexpr size_t kTimeBuckets = kTimeBoundsNs.size() + 1;
static_assert(std::ranges::is_sorted(kTimeBoundsNs));

// The bucket that counts this time. Pure; five comparisons.
[[nodiscard]] constexpr size_t time_bucket(uint64_t ns) {
  const auto bound = std::lower_bound(kTimeBoundsNs.begin(), kTimeBoundsNs.end(), ns);
  return static_cast<size_t>(bound - kTimeBoundsNs.begin());
}

static_assert(time_bucket(0) == 0 && time_bucket(UINT64_MAX) == kTimeBuckets - 1);

struct TimeHistogram {
  std::array<uint64_t, kTimeBuckets> counts{};
  uint64_t sum_ns = 0;

  void note(uint64_t ns) {
    ++counts[time_bucket(ns)];
    sum_ns += ns;
  }
  friend bool operator==(const TimeHistogram&, const TimeHistogram&) = default;
};

}  // namespace djinn::ipc
