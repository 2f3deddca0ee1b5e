// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/reclaim/copy_reclaimer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {

CopyReclaimer::CopyReclaimer(Loop& loop, Memory& memory, Copies& copies, Events& events,
                             Thresholds thresholds)
    : memory_(memory),
      copies_(copies),
      events_(events),
      thresholds_(thresholds),
      soon_(loop, [this] { look(); }) {
  memory.set_reclaim(*this);
}

void CopyReclaimer::set(Thresholds thresholds) {
  thresholds_ = thresholds;
  changed();
}

bool CopyReclaimer::make_room(uint64_t bytes) {
  DJINN_ASSERT(bytes > 0);
  if (copies_.leaving_bytes(device()) + copies_.evictable_bytes(device()) < bytes) return false;
  return copies_.give_way(device(), bytes) >= bytes;
}

uint64_t CopyReclaimer::pinned_bytes() const {
  return copies_.pinned_bytes(device());
}

void CopyReclaimer::refused(const Error& why, std::optional<Owner> user) {
  Event event = device_event(device(), EventKind::kMemoryRefused, "memory is refused");
  event.owner = user;
  event.error = why.code;
  event.sentence = why.message;
  events_.emit(std::move(event));
}

// Later, because who was granted some is in the middle of it.
void CopyReclaimer::changed() {
  const PressureLevel now = level_of(memory_.granted_bytes(), memory_.total_bytes(), thresholds_);
  if (now == PressureLevel::kNone) {
    level_ = now;
  } else if (!soon_.active()) {
    soon_.start_once(0);
  }
}

void CopyReclaimer::look() {
  const uint64_t total = memory_.total_bytes(), granted = memory_.granted_bytes();
  const PressureLevel before = std::exchange(level_, level_of(granted, total, thresholds_));
  if (level_ == PressureLevel::kNone) return;
  const uint64_t wanted = share_of(total, thresholds_.idle_percent);
  if (level_ > before) {
    Event event =
        device_event(device(), EventKind::kMemoryPressure,
                     fmt::format("more than {} % of the memory is granted: {} of {}; copies that "
                                 "are not pinned are dropped",
                                 thresholds_.idle_percent, size_text(granted), size_text(total)));
    event.bytes = granted;
    events_.emit(std::move(event));
  }
  (void)copies_.give_way(device(), granted - std::min(granted, wanted));
}

}  // namespace djinn::daemon
