// SPDX-License-Identifier: Apache-2.0

// ClockByHand: time that stands still until a test moves it.
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

}  // namespace djinn
