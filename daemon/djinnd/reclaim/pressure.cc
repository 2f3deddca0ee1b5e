// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/reclaim/pressure.h"

#include "kernel/base/assert.h"

namespace djinn::daemon {

uint64_t share_of(uint64_t total, uint32_t percent) {
  DJINN_ASSERT(percent <= 100);
  return total / 100 * percent + total % 100 * percent / 100;
}

PressureLevel level_of(uint64_t granted, uint64_t total, const Thresholds& at) {
  if (granted > share_of(total, at.all_percent)) return PressureLevel::kAllGoes;
  return granted > share_of(total, at.idle_percent) ? PressureLevel::kIdleGoes
                                                    : PressureLevel::kNone;
}

}  // namespace djinn::daemon
