// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/reclaim/reclaimer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

// djinnd is not told when a run ends. It looks often enough to notice, and seldom enough that a
// model that is used again and again is not read as often.
constexpr uint64_t kRunsLookMs = 2000;
// djinnd looks this often whether the memory that a request waits for is still coming.
constexpr uint64_t kWaitingLookMs = 250;
// Even if groups count as idle very soon (memory.spill_after), those that could not be spilled are
// tried again only after this pause.
constexpr uint64_t kLookMsMin = 50;

}  // namespace

Reclaimer::Reclaimer(Loop& loop, Memory& memory, Models& models, Sessions& sessions, Events& events,
                     Thresholds thresholds)
    : memory_(memory),
      models_(models),
      weights_(models.weights_on(memory.device())),
      sessions_(sessions),
      events_(events),
      thresholds_(thresholds),
      soon_(loop, [this] { look(); }),
      later_(loop, [this] { look(); }),
      waiting_(loop, [this] {
        sessions_.lane_steps().look();
        memory_.freed();
      }) {
  memory.set_reclaim(*this);
}

void Reclaimer::set(Thresholds thresholds) {
  thresholds_ = thresholds;
  changed();
}

uint64_t Reclaimer::coming_bytes() const {
  const uint64_t leaving = weights_.leaving_bytes(device()) +
                           models_.leaving_bytes_of_loads(device()) +
                           sessions_.leaving_bytes(device());
  return leaving - std::min(leaving, held_up_bytes());  // clients and workers go on between the two
}

uint64_t Reclaimer::held_up_bytes() const {
  return weights_.held_up_bytes(device()) + sessions_.held_up_bytes(device());
}

// --- when somebody asks

void Reclaimer::watch_waiting() {
  if (waiting_.active()) return;
  sessions_.lane_steps().look();
  waiting_.start_once(kWaitingLookMs);
}

bool Reclaimer::make_room(uint64_t bytes) {
  DJINN_ASSERT(bytes > 0);
  watch_waiting();
  uint64_t coming = coming_bytes();
  IdleMemory& idle = sessions_.idle_memory();
  const IdleMemory::Offer offer = idle.offer(device());
  const uint64_t possible = coming + offer.bytes() + weights_.evictable_bytes(device());
  const Spill& spill = sessions_.sequences().spill();
  if (possible + spill.evictable_bytes(device()) < bytes) {
    // Until a worker has them again that has died, nothing gives way for what may not come.
    return possible + spill.evictable_soon_bytes(device()) >= bytes;
  }
  if (coming < bytes) coming += idle.begin(offer, bytes - coming, false);
  if (coming < bytes) {
    coming += weights_.give_way(device(), bytes - coming, Weights::Whose::kNobodyRuns).bytes;
  }
  return coming >= bytes ||
         coming + sessions_.sequences().begin_spill(device(), bytes - coming, false) >= bytes;
}

uint64_t Reclaimer::pinned_bytes() const {
  return weights_.pinned_bytes(device());
}

uint64_t Reclaimer::leaving_bytes(Owner user) const {
  return sessions_.leaving_bytes(device(), user);
}

uint64_t Reclaimer::leaving_bytes(Memory::Holder session) const {
  const Session* const known = sessions_.find(SessionId{session.id});
  return known != nullptr ? known->trimming_bytes : 0;
}

void Reclaimer::take_back_idle(Owner user) {
  watch_waiting();
  sessions_.idle_memory().begin(device(), user);
}

void Reclaimer::refused(const Error& why, std::optional<Owner> user) {
  const std::string whom = user ? " to " + events_.user_text(*user) : "";
  Event event = device_event(device(), EventKind::kMemoryRefused, "memory is refused" + whom);
  event.owner = user;
  event.error = why.code;
  event.sentence = why.message;
  if (!user) return events_.emit(std::move(event));
  events_.emit_limited(std::move(event));
}

// --- before somebody asks

void Reclaimer::changed() {
  const PressureLevel now = level_of(memory_.granted_bytes(), memory_.total_bytes(), thresholds_);
  if (now == PressureLevel::kNone) {
    level_ = now;
  } else if (!soon_.active()) {
    soon_.start_once(0);
  }
}

void Reclaimer::look() {
  const uint64_t total = memory_.total_bytes();
  const PressureLevel before =
      std::exchange(level_, level_of(memory_.granted_bytes(), total, thresholds_));
  if (level_ > before) emit_pressure();
  if (level_ != PressureLevel::kNone) shrink_to(share_of(total, thresholds_.idle_percent), false);
  const bool runs_hold = level_ == PressureLevel::kAllGoes &&
                         shrink_to(share_of(total, thresholds_.all_percent), true);
  if (level_ == PressureLevel::kNone) return;
  std::optional<uint64_t> again_ms = sessions_.sequences().spill().ms_to_next_idle(device());
  if (const auto refs_ms = sessions_.idle_memory().ms_to_next_idle(device())) {
    again_ms = std::min(again_ms.value_or(*refs_ms), *refs_ms);
  }
  if (runs_hold) again_ms = std::min(again_ms.value_or(kRunsLookMs), kRunsLookMs);
  if (again_ms) later_.start_once(std::max(*again_ms + 1, kLookMsMin));
}

void Reclaimer::emit_pressure() {
  DJINN_ASSERT(level_ != PressureLevel::kNone);
  const bool all = level_ == PressureLevel::kAllGoes;
  Event event = device_event(
      device(), EventKind::kMemoryPressure,
      fmt::format("more than {} % of the memory is granted: {} of {}; {} models move down",
                  all ? thresholds_.all_percent : thresholds_.idle_percent,
                  size_text(memory_.granted_bytes()), size_text(memory_.total_bytes()),
                  all ? "all but running" : "idle"));
  event.bytes = memory_.granted_bytes();
  events_.emit(std::move(event));
}

bool Reclaimer::shrink_to(uint64_t bytes, bool of_sessions) {
  const uint64_t granted = memory_.granted_bytes();
  DJINN_ASSERT(granted <= memory_.total_bytes() && bytes <= memory_.total_bytes());
  const uint64_t over = granted - std::min(granted, bytes);
  uint64_t coming = coming_bytes();
  if (coming < over) {
    IdleMemory& idle = sessions_.idle_memory();
    coming += idle.begin(idle.offer(device()), over - coming, !of_sessions);
  }
  if (coming >= over) return false;
  const auto whose = of_sessions ? Weights::Whose::kNobodyRuns : Weights::Whose::kNobodys;
  const Weights::Begun begun = weights_.give_way(device(), over - coming, whose);
  coming += begun.bytes;
  if (coming < over) sessions_.sequences().begin_spill(device(), over - coming, !of_sessions);
  return begun.runs_hold;
}

}  // namespace djinn::daemon
