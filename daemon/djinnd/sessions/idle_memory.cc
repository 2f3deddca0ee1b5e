// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/idle_memory.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <tuple>

#include "kernel/base/assert.h"

namespace djinn::daemon {

uint64_t IdleMemory::Offer::ref_bytes() const {
  uint64_t bytes = 0;
  for (const Candidate& candidate : candidates) bytes += candidate.ref_bytes;
  return bytes;
}

uint64_t IdleMemory::Offer::lane_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [key, of_lane] : left_over) bytes += of_lane;
  for (const Candidate& candidate : candidates) bytes += candidate.heap_bytes;
  return bytes;
}

bool IdleMemory::may_have_idle(const Session& session) const {
  return session.ref_bytes_granted > 0 || lanes_.heap_bytes(session.worker()) > 0;
}

IdleMemory::Offer IdleMemory::offer(DeviceId device) const {
  return {candidates(device, {}), left_over(device, {})};
}

// Many sessions may have nothing that could go, and looking into a session's memory takes a system
// call. So each is looked into at most once, and only if there may be something.
std::vector<IdleMemory::Candidate> IdleMemory::candidates(DeviceId device,
                                                          std::optional<Owner> user) const {
  std::vector<Candidate> found;
  std::set<WorkerKey> trimming;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device) continue;
    const WorkerKey worker = session->worker();
    if (session->trims) trimming.insert(worker);
    if (!may_have_idle(*session)) continue;
    const bool may_go = session->phase == SessionPhase::kLive && session->attached &&
                        !session->trims && domains_.ready(worker) && !lane_steps_.is_long(worker);
    if (!may_go || (user && session->domain != *user)) continue;
    const auto progress = session->memory.progress();
    if (!progress || session->trimmed_at == progress->commit) continue;
    spill_.note_use(*session, *progress);
    found.push_back({session.get(), session->runs(*progress), session->used_ns,
                     std::min(progress->idle_ref_bytes, session->ref_bytes_granted)});
  }
  std::ranges::stable_sort(found, {},
                           [](const Candidate& one) { return std::tuple(one.runs, one.used_ns); });
  for (Candidate& one : found | std::views::reverse) {
    const WorkerKey worker = one.session->worker();
    if (trimming.insert(worker).second) one.heap_bytes = lanes_.heap_bytes(worker);
  }
  std::erase_if(found, [](const Candidate& one) { return one.bytes() == 0; });
  return found;
}

std::map<WorkerKey, uint64_t> IdleMemory::left_over(DeviceId device,
                                                    std::optional<Owner> user) const {
  std::map<WorkerKey, uint64_t> found;
  if (domains_.spares_fail(device)) return found;  // no other would come in its place
  for (const auto& [key, worker] : domains_.all()) {
    if (key.device != device || (user && key.owner != *user)) continue;
    if (!worker->ready() || worker->is_killed()) continue;
    if (const uint64_t bytes = lanes_.bytes(key)) found[key] = bytes;
  }
  if (found.empty()) return found;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->has_memory()) found.erase(session->worker());
  }
  return found;
}

uint64_t IdleMemory::ending_bytes(DeviceId device, std::optional<Owner> user) const {
  uint64_t bytes = 0;
  for (const auto& [key, worker] : domains_.all()) {
    const bool counts = key.device == device && (!user || key.owner == *user);
    if (counts && worker->is_dismissed()) bytes += lanes_.bytes(key);
  }
  return bytes;
}

uint64_t IdleMemory::begin(const Offer& offer, uint64_t bytes, bool idle_only) {
  uint64_t coming = 0;
  for (const auto& [key, of_lane] : offer.left_over) {
    if (coming >= bytes || idle_only) break;
    domains_.find(key)->dismiss();
    coming += of_lane;
  }
  for (const Candidate& candidate : offer.candidates) {
    if (coming >= bytes) break;
    if (idle_only && !spill_.is_idle(*candidate.session)) continue;
    begin(candidate);
    coming += candidate.bytes();
  }
  return coming;
}

std::optional<uint64_t> IdleMemory::ms_to_next_idle(DeviceId device) const {
  std::optional<uint64_t> next;
  // Sessions whose refs fill all of their memory count as well, because djinnd is not told of a
  // release.
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device) continue;
    if (!may_have_idle(*session)) continue;
    const uint64_t ms = spill_.ms_to_idle(*session);
    next = std::min(next.value_or(ms), ms);
  }
  return next;
}

void IdleMemory::begin(DeviceId device, Owner user) {
  for (const auto& [key, bytes] : left_over(device, user)) domains_.find(key)->dismiss();
  for (const Candidate& candidate : candidates(device, user)) begin(candidate);
}

void IdleMemory::begin(const Candidate& candidate) {
  Session& session = *candidate.session;
  DJINN_ASSERT(!session.trims && candidate.ref_bytes <= session.ref_bytes_granted);
  session.trims = true;
  session.trimming_bytes = candidate.ref_bytes;
  session.trimming_heap_bytes = candidate.heap_bytes;
  domains_.send(session.worker(), {ipc::TrimRefs{session.id}});
}

uint64_t IdleMemory::coming_bytes(const Session& session) const {
  if (!session.trims) return 0;
  return session.trimming_bytes +
         std::min(session.trimming_heap_bytes, lanes_.heap_bytes(session.worker()));
}

void IdleMemory::note_returned(Session& session, uint64_t bytes) {
  session.trimming_bytes -= std::min(session.trimming_bytes, bytes);
}

void IdleMemory::on_trimmed(WorkerKey key, const ipc::RefsTrimmed& event) {
  Session* const session = sessions_.find(event.session, key);
  if (session == nullptr || !session->trims) return;
  session->trims = false;
  session->trimming_bytes = 0;
  session->trimming_heap_bytes = 0;
  if (const auto progress = session->memory.progress()) session->trimmed_at = progress->commit;
}

void IdleMemory::worker_died(Session& session) {
  session.trims = false;
  session.trimming_bytes = 0;
  session.trimming_heap_bytes = 0;
  session.trimmed_at.reset();
}

}  // namespace djinn::daemon
