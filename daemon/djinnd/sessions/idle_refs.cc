// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/idle_refs.h"

#include <algorithm>
#include <tuple>

#include "kernel/base/assert.h"

namespace djinn::daemon {

std::vector<IdleRefs::Candidate> IdleRefs::candidates(DeviceId device,
                                                      std::optional<Owner> user) const {
  std::vector<Candidate> found;
  for (const auto& [id, session] : sessions_.all()) {
    const bool may_go = session->device == device && session->ref_bytes_granted > 0 &&
                        session->phase == SessionPhase::kLive && session->attached &&
                        !session->trims && domains_.ready(session->worker()) &&
                        !lane_steps_.is_long(session->worker());
    if (!may_go || (user && session->domain != *user)) continue;
    const auto progress = session->memory.progress();
    if (!progress || session->trimmed_at == progress->commit) continue;
    spill_.note_use(*session, *progress);
    const uint64_t idle = std::min(progress->idle_ref_bytes, session->ref_bytes_granted);
    if (idle > 0) found.push_back({session.get(), idle, session->runs()});
  }
  return found;
}

uint64_t IdleRefs::bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const Candidate& candidate : candidates(device)) bytes += candidate.bytes;
  return bytes;
}

uint64_t IdleRefs::begin(DeviceId device, uint64_t bytes, bool idle_only) {
  std::vector<Candidate> found = candidates(device);
  std::ranges::stable_sort(
      found, {}, [](const Candidate& one) { return std::tuple(one.runs, one.session->used_ns); });
  uint64_t coming = 0;
  for (const Candidate& candidate : found) {
    if (coming >= bytes) break;
    if (idle_only && !spill_.is_idle(*candidate.session)) continue;
    begin(candidate);
    coming += candidate.bytes;
  }
  return coming;
}

std::optional<uint64_t> IdleRefs::ms_to_next_idle(DeviceId device) const {
  std::optional<uint64_t> next;
  // Also of those whose refs take all by now: djinnd is not told of a release.
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device || session->ref_bytes_granted == 0) continue;
    const uint64_t ms = spill_.ms_to_idle(*session);
    next = std::min(next.value_or(ms), ms);
  }
  return next;
}

void IdleRefs::begin(DeviceId device, Owner user) {
  for (const Candidate& candidate : candidates(device, user)) begin(candidate);
}

void IdleRefs::begin(const Candidate& candidate) {
  Session& session = *candidate.session;
  DJINN_ASSERT(!session.trims && candidate.bytes <= session.ref_bytes_granted);
  session.trims = true;
  session.trimming_bytes = candidate.bytes;
  domains_.send(session.worker(), {ipc::TrimRefs{session.id}});
}

void IdleRefs::note_returned(Session& session, uint64_t bytes) {
  session.trimming_bytes -= std::min(session.trimming_bytes, bytes);
}

void IdleRefs::on_trimmed(WorkerKey key, const ipc::RefsTrimmed& event) {
  Session* const session = sessions_.find(event.session, key);
  if (session == nullptr || !session->trims) return;
  session->trims = false;
  session->trimming_bytes = 0;
  if (const auto progress = session->memory.progress()) session->trimmed_at = progress->commit;
}

void IdleRefs::worker_died(Session& session) {
  session.trims = false;
  session.trimming_bytes = 0;
  session.trimmed_at.reset();
}

}  // namespace djinn::daemon
