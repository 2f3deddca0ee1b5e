// SPDX-License-Identifier: Apache-2.0

// PressureLevel: how short the memory is, before it runs out. What is refused at the door (100 %)
// is memory.h's.
#pragma once

#include <cstdint>

#include "daemon/djinnd/memory/thresholds.h"

namespace djinn::daemon {

enum class PressureLevel : uint8_t { kNone, kIdleGoes, kAllGoes };

// Bytes of a share. Pure.
[[nodiscard]] uint64_t share_of(uint64_t total, uint32_t percent);
// Pure. Nothing is above 100 %.
[[nodiscard]] PressureLevel level_of(uint64_t granted, uint64_t total, const Thresholds& at);

}  // namespace djinn::daemon
