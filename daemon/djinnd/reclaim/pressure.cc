// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/reclaim/pressure.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace djinn::daemon {
namespace {

// djinnd is not told when a run ends. Often enough to notice, seldom enough that a model that is
// used again and again is not read as often.
constexpr uint64_t kRunsLookMs = 2000;

uint64_t share_of(uint64_t total, uint32_t percent) {
  return total / 100 * percent + total % 100 * percent / 100;
}

}  // namespace

PressureLevel level_of(uint64_t granted, uint64_t total, const Thresholds& at) {
  if (granted > share_of(total, at.all_percent)) return PressureLevel::kAllGoes;
  return granted > share_of(total, at.idle_percent) ? PressureLevel::kIdleGoes
                                                    : PressureLevel::kNone;
}

Pressure::Pressure(Loop& loop, const Memory& memory, Residency& residency, const Spill& spill,
                   Events& events, Thresholds thresholds)
    : memory_(memory),
      residency_(residency),
      spill_(spill),
      events_(events),
      thresholds_(thresholds),
      soon_(loop, [this] { look(); }),
      later_(loop, [this] { look(); }) {}

void Pressure::set(Thresholds thresholds) {
  thresholds_ = thresholds;
  note();
}

void Pressure::note() {
  const PressureLevel now = level_of(memory_.granted_bytes(), memory_.total_bytes(), thresholds_);
  if (now == PressureLevel::kNone) {
    level_ = now;
  } else if (!soon_.active()) {
    soon_.start_once(0);
  }
}

void Pressure::look() {
  const uint64_t total = memory_.total_bytes();
  const PressureLevel before =
      std::exchange(level_, level_of(memory_.granted_bytes(), total, thresholds_));
  if (level_ > before) {
    const bool all = level_ == PressureLevel::kAllGoes;
    Event event = device_event(
        EventKind::kMemoryPressure,
        fmt::format("more than {} % of the memory is granted: {} of {} bytes; {} models "
                    "move down",
                    all ? thresholds_.all_percent : thresholds_.idle_percent,
                    memory_.granted_bytes(), total, all ? "all but running" : "idle"));
    event.bytes = memory_.granted_bytes();
    events_.tell(std::move(event));
  }
  if (level_ != PressureLevel::kNone)
    residency_.shrink_to(share_of(total, thresholds_.idle_percent), false);
  const bool runs_hold = level_ == PressureLevel::kAllGoes &&
                         residency_.shrink_to(share_of(total, thresholds_.all_percent), true);
  if (level_ == PressureLevel::kNone) return;
  std::optional<uint64_t> again_ms = spill_.ms_to_next_idle();
  if (runs_hold) again_ms = std::min(again_ms.value_or(kRunsLookMs), kRunsLookMs);
  if (again_ms) later_.start_once(*again_ms + 1);
}

}  // namespace djinn::daemon
