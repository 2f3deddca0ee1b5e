// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/ref_grants.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/djinnd/loop/descriptors.h"
#include "ipc/limits.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

Error over_quota(uint64_t ref_bytes_max) {
  const bool is_quota = ref_bytes_max < limits::kRefAddressBytes;
  return {
      ErrorCode::kQuotaExceeded,
      fmt::format("The session's refs would take more than its quota of {}. Release some{}.",
                  size_text(ref_bytes_max),
                  is_quota ? ", or, if djinnd has more memory than that, ask the administrator "
                             "for a larger memory.session_quota, which sessions that begin then "
                             "have"
                           : "; no session's may take more")};
}

Error no_such_place() {
  return {ErrorCode::kInvalidArgument, "There is no room for memory in that place of the refs."};
}

// Tells whether the places are whole pages within the window, have `bytes` in all, and overlap
// neither each other nor any chunk.
bool are_free(const SessionMemory& memory, std::vector<ipc::MemoryRange> places, uint64_t bytes,
              uint64_t granularity) {
  for (const auto& [offset, extent] : memory.refs) places.push_back({offset, extent.bytes});
  std::ranges::sort(places, {}, &ipc::MemoryRange::offset);
  uint64_t end = 0;
  uint64_t held = 0;
  for (const ipc::MemoryRange& place : places) {
    const bool fits = place.bytes > 0 && place.offset >= end && place.offset % granularity == 0 &&
                      place.bytes % granularity == 0 &&
                      range_fits(place.offset, place.bytes, memory.ref_bytes_max);
    if (!fits) return false;
    end = place.offset + place.bytes;
    held += place.bytes;
  }
  return held == memory.chunk_bytes() + bytes;
}

// Errors: kOutOfMemory if there would be too many chunks, kInvalidArgument for places that are not
// free.
Status check_places(const SessionMemory& memory, const ipc::GrantRequest& request,
                    uint64_t granularity) {
  if (memory.refs.size() + request.places.size() > limits::kRefChunks) {
    return Error{
        ErrorCode::kOutOfMemory,
        fmt::format("The session's refs would be in more than {} pieces of memory. Release "
                    "some.",
                    limits::kRefChunks)};
  }
  if (!are_free(memory, request.places, request.bytes, granularity)) return no_such_place();
  return {};
}

}  // namespace

Status RefGrants::check(const Session& session, const ipc::GrantRequest& request) const {
  const SessionMemory& memory = session.memory;
  if (!range_fits(session.ref_bytes_granted, request.bytes, memory.ref_bytes_max)) {
    return over_quota(memory.ref_bytes_max);
  }
  if (is_in_chunks(session) == request.places.empty()) return no_such_place();
  if (request.places.empty()) return {};
  // No other session should give way for bytes that are only wished for.
  if (request.or_less && request.bytes > memory_of(session).free_bytes()) {
    return Error{ErrorCode::kOutOfMemory, "So much more than is needed is not free."};
  }
  return check_places(memory, request, devices_.extents_of(session.device).granularity_bytes());
}

void RefGrants::on_request(WorkerKey key, const ipc::GrantRequest& event) {
  Session* const session = sessions_.find(event.session, key);
  const bool known = session != nullptr && session->may_be_granted();
  if (!known) return domains_.answer_grant(key, event.request, session_has_ended());
  if (session->ref_bytes_freeing > 0) return session->ref_asks.push_back(event);
  if (const Status allowed = check(*session, event); !allowed) {
    if (!event.or_less) refusals_.note(key.owner, key.device, session->id, allowed);
    return domains_.answer_grant(key, event.request, allowed);
  }
  const Ask ask{key, event, session->attachment};
  const auto answer = [this, ask](const Status& status) { granted(ask, status); };
  memory_of(*session).request(Memory::of_session(session->id), event.bytes, answer,
                              event.or_less ? vmu::Amount::kMore : vmu::Amount::kNeeded);
}

void RefGrants::granted(const Ask& ask, const Status& status) {
  const ipc::GrantRequest& request = ask.request;
  Session* const session = sessions_.find(request.session, ask.key);
  if (session != nullptr && !request.or_less) {
    refusals_.note(ask.key.owner, ask.key.device, session->id, status);
  }
  if (session == nullptr || !status) {
    return domains_.answer_grant(ask.key, request.request, status);
  }
  session->ref_bytes_granted += request.bytes;
  if (!is_in_chunks(*session)) return domains_.answer_grant(ask.key, request.request, status);
  session->ref_bytes_coming += request.bytes;
  session->ref_makes.insert(request.request);
  std::vector<uint64_t> sizes;
  for (const ipc::MemoryRange& place : request.places) sizes.push_back(place.bytes);
  create_all(devices_.extents_of(session->device), ExtentUse::kRefs, std::move(sizes),
             [this, ask](Result<std::vector<Fd>> made) { has_chunks(ask, std::move(made)); });
}

void RefGrants::has_chunks(const Ask& ask, Result<std::vector<Fd>> made) {
  const ipc::GrantRequest& request = ask.request;
  ExtentSource& extents = devices_.extents_of(ask.key.device);
  Session* const session = sessions_.find(request.session, ask.key);
  // A worker that started since then counts its requests from 1, too.
  const bool is_asked = session != nullptr && session->attachment == ask.attachment &&
                        session->ref_makes.erase(request.request) > 0;
  if (session != nullptr) session->ref_bytes_coming -= request.bytes;
  if (!made.ok()) {
    if (is_asked) domains_.answer_grant(ask.key, request.request, made.error());
    return freed(request.session, request.bytes);
  }
  Status placed = is_asked ? Status() : session_has_ended();
  // The worker may have asked for the same place twice, and each chunk takes a descriptor.
  if (placed) placed = check_places(session->memory, request, extents.granularity_bytes());
  if (placed) placed = check_descriptors_left(made->back());
  if (!placed) {
    if (session != nullptr) session->ref_bytes_freeing += request.bytes;
    extents.free(*std::move(made),
                 [this, id = request.session, bytes = request.bytes] { chunk_freed(id, bytes); });
    if (is_asked) domains_.answer_grant(ask.key, request.request, placed);
    return;
  }
  std::vector<int> fds;
  for (size_t i = 0; i < request.places.size(); ++i) {
    const auto [at, is_new] = session->memory.refs.emplace(
        request.places[i].offset, RefExtent{request.places[i].bytes, std::move((*made)[i])});
    DJINN_ASSERT(is_new);
    fds.push_back(at->second.fd.get());
  }
  domains_.send(ask.key, {ipc::GiveMemory{request.request, request.bytes}}, fds);
}

bool RefGrants::on_return(WorkerKey key, const ipc::GrantReturn& event) {
  Session* const session = sessions_.find(event.session, key);
  if (session == nullptr) return true;  // all of it was given back with the session
  if (event.bytes > session->ref_bytes_granted) return false;
  if (!is_in_chunks(*session)) {
    release(*session, event.bytes);
    return true;
  }
  const auto chunk = session->memory.refs.find(event.offset);
  if (chunk == session->memory.refs.end() || chunk->second.bytes != event.bytes) return false;
  free_chunk(*session, event.offset);
  return true;
}

void RefGrants::free_chunk(Session& session, uint64_t offset) {
  auto chunk = session.memory.refs.extract(offset);
  DJINN_ASSERT(!chunk.empty());
  session.ref_bytes_freeing += chunk.mapped().bytes;
  std::vector<Fd> extents;
  extents.push_back(std::move(chunk.mapped().fd));
  devices_.extents_of(session.device)
      .free(std::move(extents),
            [this, id = session.id, bytes = chunk.mapped().bytes] { chunk_freed(id, bytes); });
}

void RefGrants::chunk_freed(SessionId id, uint64_t bytes) {
  Session* const session = sessions_.find(id);
  if (session != nullptr) {
    DJINN_ASSERT(session->ref_bytes_freeing >= bytes);
    session->ref_bytes_freeing -= bytes;
  }
  freed(id, bytes);
  if (session == nullptr || session->ref_bytes_freeing > 0) return;
  const WorkerKey key = session->worker();
  const auto asks = std::exchange(session->ref_asks, {});
  if (std::exchange(session->has_trimmed, false)) on_trimmed(key, ipc::RefsTrimmed{id});
  for (const ipc::GrantRequest& request : asks) on_request(key, request);
}

void RefGrants::freed(SessionId id, uint64_t bytes) {
  Session* const session = sessions_.find(id);
  session != nullptr ? release(*session, bytes) : late_.freed_late(id, bytes);
}

void RefGrants::release(Session& session, uint64_t bytes) const {
  const Memory::Holder holder = Memory::of_session(session.id);
  DJINN_ASSERT(bytes <= session.ref_bytes_granted);
  DJINN_ASSERT(session.ref_bytes_granted <= memory_of(session).held_by(holder));
  session.ref_bytes_granted -= bytes;
  IdleMemory::note_returned(session, bytes);
  memory_of(session).release(holder, bytes);
}

void RefGrants::on_trimmed(WorkerKey key, const ipc::RefsTrimmed& event) {
  Session* const session = sessions_.find(event.session, key);
  if (session != nullptr && session->ref_bytes_freeing > 0) {
    session->has_trimmed = true;
    return;
  }
  idle_memory_.on_trimmed(key, event);
  devices_.of(key.device).freed();
}

void RefGrants::refuse_asks(Session& session) {
  for (const ipc::GrantRequest& request : std::exchange(session.ref_asks, {})) {
    domains_.answer_grant(session.worker(), request.request, memory_is_given_up());
  }
  for (const uint64_t request : std::exchange(session.ref_makes, {})) {
    domains_.answer_grant(session.worker(), request, memory_is_given_up());
  }
}

void RefGrants::worker_died(Session& session) {
  IdleMemory::worker_died(session);
  session.ref_asks.clear();
  session.ref_makes.clear();
  session.has_trimmed = false;
}

}  // namespace djinn::daemon
