// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/lane_memory.h"

#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

Memory::Holder slab_of(Owner domain) {
  return Memory::of_lane(WorkerId{domain.number() + 1});
}
Memory::Holder heap_of(Owner domain) {
  return Memory::of_heap(WorkerId{domain.number() + 1});
}

}  // namespace

void LaneMemory::on_grant_request(Owner domain, const ipc::GrantRequest& event) {
  DJINN_ASSERT(is_of_lane(event.kind));
  const bool slab = event.kind == ipc::GrantKind::kSlab;
  const Memory::Holder holder = slab ? slab_of(domain) : heap_of(domain);
  memory_.charge(holder, domain);
  const Lane lane{domain, deaths_[domain]};
  memory_.request(holder, event.bytes, [this, slab, lane, event](const Status& granted) {
    slab ? slab_granted(lane, event, granted) : give_heap(lane.domain, event, granted);
  });
}

void LaneMemory::slab_granted(Lane lane, const ipc::GrantRequest& event, const Status& granted) {
  refusals_.note(lane.domain, {}, granted);
  if (!granted) return domains_.answer_grant(lane.domain, event.request, granted);
  extents_.create(ExtentUse::kSlab, event.bytes, [this, lane, event](Result<Fd> made) {
    give_slab(lane, event, std::move(made));
  });
}

void LaneMemory::give_slab(Lane lane, const ipc::GrantRequest& event, Result<Fd> made) {
  const Memory::Holder holder = slab_of(lane.domain);
  const uint64_t held = memory_.held_by(holder);
  // Its worker died meanwhile, and the grant ended, or gave back what it had not got yet.
  const bool wanted = deaths_.at(lane.domain) == lane.deaths && held >= event.bytes;
  if (!wanted) {
    if (made.ok()) extents_.free(*std::move(made));
    return;
  }
  if (!made.ok()) {
    memory_.release(holder, event.bytes);
    return domains_.answer_grant(lane.domain, event.request, made.error());
  }
  // The new one replaces the former, which nothing runs on while the lane asks.
  memory_.release(holder, held - event.bytes);
  const int fds[] = {made.value().get()};
  domains_.send(lane.domain, {ipc::GiveSlab{event.request, event.bytes}}, fds);
}

void LaneMemory::give_heap(Owner domain, const ipc::GrantRequest& event, const Status& granted) {
  refusals_.note(domain, {}, granted);
  domains_.answer_grant(domain, event.request, granted);
}

bool LaneMemory::on_grant_return(Owner domain, const ipc::GrantReturn& event) {
  DJINN_ASSERT(is_of_lane(event.kind));
  const bool slab = event.kind == ipc::GrantKind::kSlab;
  const Memory::Holder holder = slab ? slab_of(domain) : heap_of(domain);
  if (event.bytes > memory_.held_by(holder)) return false;
  memory_.release(holder, event.bytes);
  return true;
}

void LaneMemory::worker_died(Owner domain) {
  ++deaths_[domain];
  memory_.release_all(slab_of(domain));
  memory_.release_all(heap_of(domain));
}

}  // namespace djinn::daemon
