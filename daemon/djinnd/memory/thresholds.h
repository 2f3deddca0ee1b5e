// SPDX-License-Identifier: Apache-2.0

// Thresholds: how much of the memory may be granted before something gives way; reclaimer.h acts.
#pragma once

#include <cstdint>

namespace djinn::daemon {

struct Thresholds {
  uint32_t idle_percent = 80;
  uint32_t all_percent = 95;
  friend bool operator==(const Thresholds&, const Thresholds&) = default;
};

static_assert(Thresholds().idle_percent <= Thresholds().all_percent);

}  // namespace djinn::daemon
