// SPDX-License-Identifier: Apache-2.0

// Pressure: what gives way as memory gets short (ARCHITECTURE section 4, Tiers). Looked at after
// each grant, and when a model falls idle:
//
//   above idle_percent   models that no session holds move down, least recently used first; then
//                        sequence groups of sessions that have run nothing for a while
//   above all_percent    those of all sessions that run nothing do, too
//
// What is refused at the door (100 %) is memory.h's.
#pragma once

#include <cstdint>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/memory/memory.h"
#include "daemon/djinnd/memory/thresholds.h"
#include "daemon/djinnd/models/tiers.h"

namespace djinn::daemon {

enum class PressureLevel : uint8_t { kNone, kIdleGoes, kAllGoes };

// Pure. Nothing is above 100 %.
[[nodiscard]] PressureLevel level_of(uint64_t granted, uint64_t total, const Thresholds& at);

class Pressure {
 public:
  Pressure(Loop& loop, const Memory& memory, Tiers& tiers, const Spill& spill, Events& events,
           Thresholds thresholds);

  void set(Thresholds thresholds);
  // Something changed; looks soon.
  void note();
  [[nodiscard]] PressureLevel level() const { return level_; }

 private:
  void look();

  const Memory& memory_;
  Tiers& tiers_;
  const Spill& spill_;
  Events& events_;
  Thresholds thresholds_;
  PressureLevel level_ = PressureLevel::kNone;
  Timer soon_;
  Timer later_;  // when another session may have become idle
};

}  // namespace djinn::daemon
