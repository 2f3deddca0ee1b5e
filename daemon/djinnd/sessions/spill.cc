// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/spill.h"

#include <algorithm>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {
namespace {

// A group or a directory that failed is not tried again for this long.
constexpr uint64_t kRetryNs = 10'000 * kNsPerMs;

uint64_t bytes_of(const std::vector<Spill::Candidate>& candidates) {
  uint64_t bytes = 0;
  for (const Spill::Candidate& one : candidates) bytes += one.group->held_bytes();
  return bytes;
}

}  // namespace

uint64_t Spill::retry_ns() const {
  return clock_.monotonic_ns() + kRetryNs;
}

bool Spill::note_failure(const std::string& why) {
  DJINN_ASSERT(!why.empty());
  not_before_ns_ = retry_ns();
  return std::exchange(fault_, why) != why;
}

void Spill::note_use(Session& session, const gc::Progress& progress) const {
  const bool used =
      progress.commit != session.commit_seen || progress.running_step != 0 || progress.in_flight;
  session.commit_seen = progress.commit;
  if (used) session.used_ns = clock_.monotonic_ns();
}

bool Spill::is_idle(const Session& session) const {
  const uint64_t now = clock_.monotonic_ns();
  DJINN_ASSERT(now >= session.used_ns);
  return now - session.used_ns >= rules_.idle_ms * kNsPerMs;
}

bool Spill::rests(const Session& session) const {
  return session.phase == SessionPhase::kLive && !session.runs() &&
         !devices_.of(session.device).waits(Memory::of_session(session.id));
}

bool Spill::may_spill(const Session& session) const {
  return rests(session) && session.attached && domains_.ready(session.worker()) &&
         !lane_steps_.is_long(session.worker());
}

bool Spill::can_spill(DeviceId device) const {
  return !rules_.directory.empty() && devices_.extents_of(device).sequences_have_parts();
}

std::vector<Spill::Candidate> Spill::candidates(DeviceId device, bool idle_only) const {
  return candidates(device, idle_only, [this](const Session& one) { return may_spill(one); });
}

std::vector<Spill::Candidate> Spill::candidates(
    DeviceId device, bool idle_only, const std::function<bool(const Session&)>& may_go) const {
  std::vector<Candidate> found;
  const uint64_t now = clock_.monotonic_ns();
  if (!can_spill(device) || now < not_before_ns_) return found;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device || session->sequences.size() == 0) continue;
    if (!may_go(*session)) continue;
    if (const auto progress = session->memory.progress()) note_use(*session, *progress);
    if (idle_only && !is_idle(*session)) continue;
    for (auto& [index, group] : session->sequences.all()) {
      const bool movable = group.phase == GroupPhase::kLive && group.place == GroupPlace::kMemory &&
                           group.held_bytes() > 0 && now >= group.spill_not_before_ns;
      if (movable) found.push_back({session.get(), &group});
    }
  }
  std::ranges::stable_sort(found, {}, [](const Candidate& c) { return c.session->used_ns; });
  uint64_t on_disk = spilled_bytes() + spilling_bytes();
  std::erase_if(found, [&](const Candidate& candidate) {
    const uint64_t bytes = candidate.group->held_bytes();
    const bool fits = range_fits(on_disk, bytes, rules_.limit_bytes);
    if (fits) on_disk += bytes;
    return !fits;
  });
  return found;
}

uint64_t Spill::evictable_bytes(DeviceId device) const {
  return bytes_of(candidates(device, false));
}

uint64_t Spill::evictable_soon_bytes(DeviceId device) const {
  return bytes_of(candidates(device, false, [this](const Session& one) {
    return may_spill(one) || (rests(one) && deaths_.returns_soon(one));
  }));
}

uint64_t Spill::spilling_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, session] : sessions_.all()) {
    for (const auto& [index, group] : session->sequences.all()) {
      if (group.place == GroupPlace::kSpilling) bytes += group.held_bytes();
    }
  }
  return bytes;
}

uint64_t Spill::spilled_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, session] : sessions_.all()) {
    for (const auto& [index, group] : session->sequences.all()) bytes += group.spilled_bytes;
  }
  return bytes;
}

uint64_t Spill::ms_to_idle(const Session& session) const {
  const uint64_t now = clock_.monotonic_ns();
  DJINN_ASSERT(now >= session.used_ns);
  const uint64_t idle_ms = (now - session.used_ns) / kNsPerMs;
  return idle_ms < rules_.idle_ms ? rules_.idle_ms - idle_ms : rules_.idle_ms;
}

std::optional<uint64_t> Spill::ms_to_next_idle(DeviceId device) const {
  std::optional<uint64_t> next;
  if (!can_spill(device)) return next;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device) continue;
    const bool in_memory = std::ranges::any_of(session->sequences.all(), [](const auto& entry) {
      return entry.second.place == GroupPlace::kMemory && entry.second.granted_bytes() > 0;
    });
    if (!in_memory) continue;
    const uint64_t ms = ms_to_idle(*session);
    next = std::min(next.value_or(ms), ms);
  }
  return next;
}

}  // namespace djinn::daemon
