// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/idle_refs.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <tuple>

#include "kernel/base/assert.h"

namespace djinn::daemon {

std::vector<IdleRefs::Candidate> IdleRefs::candidates(DeviceId device,
                                                      std::optional<Owner> user) const {
  std::vector<Candidate> found;
  std::set<WorkerKey> trimming;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device) continue;
    if (session->trims) trimming.insert(session->worker());
    const bool may_go = session->phase == SessionPhase::kLive && session->attached &&
                        !session->trims && domains_.ready(session->worker()) &&
                        !lane_steps_.is_long(session->worker());
    if (!may_go || (user && session->domain != *user)) continue;
    const auto progress = session->memory.progress();
    if (!progress || session->trimmed_at == progress->commit) continue;
    spill_.note_use(*session, *progress);
    const uint64_t refs = std::min(progress->idle_ref_bytes, session->ref_bytes_granted);
    found.push_back({session.get(), {refs, 0}});
  }
  std::ranges::stable_sort(found, {}, [](const Candidate& one) {
    return std::tuple(one.session->runs(), one.session->used_ns);
  });
  for (Candidate& one : found | std::views::reverse) {
    const WorkerKey worker = one.session->worker();
    if (trimming.insert(worker).second) one.bytes.heaps = lanes_.heap_bytes(worker);
  }
  std::erase_if(found, [](const Candidate& one) { return one.bytes.all() == 0; });
  return found;
}

IdleRefs::Bytes IdleRefs::bytes(DeviceId device) const {
  Bytes bytes;
  for (const Candidate& candidate : candidates(device)) {
    bytes.refs += candidate.bytes.refs;
    bytes.heaps += candidate.bytes.heaps;
  }
  return bytes;
}

uint64_t IdleRefs::begin(DeviceId device, uint64_t bytes, bool idle_only) {
  uint64_t coming = 0;
  for (const Candidate& candidate : candidates(device)) {
    if (coming >= bytes) break;
    if (idle_only && !spill_.is_idle(*candidate.session)) continue;
    begin(candidate);
    coming += candidate.bytes.all();
  }
  return coming;
}

std::optional<uint64_t> IdleRefs::ms_to_next_idle(DeviceId device) const {
  std::optional<uint64_t> next;
  // Sessions whose refs fill all of their memory count as well, because djinnd is not told of a
  // release.
  for (const auto& [id, session] : sessions_.all()) {
    if (session->device != device) continue;
    if (session->ref_bytes_granted == 0 && lanes_.heap_bytes(session->worker()) == 0) continue;
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
  DJINN_ASSERT(!session.trims && candidate.bytes.refs <= session.ref_bytes_granted);
  session.trims = true;
  session.trimming_bytes = candidate.bytes.refs;
  session.trimming_heap_bytes = candidate.bytes.heaps;
  domains_.send(session.worker(), {ipc::TrimRefs{session.id}});
}

uint64_t IdleRefs::coming_bytes(const Session& session) const {
  if (!session.trims) return 0;
  return session.trimming_bytes +
         std::min(session.trimming_heap_bytes, lanes_.heap_bytes(session.worker()));
}

void IdleRefs::note_returned(Session& session, uint64_t bytes) {
  session.trimming_bytes -= std::min(session.trimming_bytes, bytes);
}

void IdleRefs::on_trimmed(WorkerKey key, const ipc::RefsTrimmed& event) {
  Session* const session = sessions_.find(event.session, key);
  if (session == nullptr || !session->trims) return;
  session->trims = false;
  session->trimming_bytes = 0;
  session->trimming_heap_bytes = 0;
  if (const auto progress = session->memory.progress()) session->trimmed_at = progress->commit;
}

void IdleRefs::worker_died(Session& session) {
  session.trims = false;
  session.trimming_bytes = 0;
  session.trimming_heap_bytes = 0;
  session.trimmed_at.reset();
}

}  // namespace djinn::daemon
