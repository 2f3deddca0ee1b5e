// SPDX-License-Identifier: Apache-2.0

// ClockByHand: time that stands still until a test moves it. ClockAhead: time that passes, and that
// a test can move on, so that it waits for no deadline and misses none.
#pragma once

#include <cstdint>

#include "kernel/base/clock.h"

namespace djinn {

class ClockByHand final : public Clock {
 public:
  [[nodiscard]] uint64_t monotonic_ns() const override { return now_ns; }
  [[nodiscard]] uint64_t wall_ns() const override { return now_ns; }
  [[nodiscard]] uint64_t thread_cpu_ns() const override { return now_ns - still_ns; }
  void stand_still(uint64_t ns) {
    now_ns += ns;
    still_ns += ns;
  }
  uint64_t now_ns = 0;
  uint64_t still_ns = 0;  // in which others had the processors
};

class ClockAhead final : public Clock {
 public:
  [[nodiscard]] uint64_t monotonic_ns() const override {
    return system_.monotonic_ns() + ahead_ns_;
  }
  [[nodiscard]] uint64_t wall_ns() const override { return system_.wall_ns() + ahead_ns_; }
  [[nodiscard]] uint64_t thread_cpu_ns() const override { return system_.thread_cpu_ns(); }
  void move_on(uint64_t ns) { ahead_ns_ += ns; }

 private:
  SystemClock system_;
  uint64_t ahead_ns_ = 0;
};

}  // namespace djinn
