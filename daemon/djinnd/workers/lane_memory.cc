// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/lane_memory.h"

#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

Memory::Holder slab_of(DomainId domain) {
  return Memory::of_lane(WorkerId{uint64_t{domain} + 1});
}
Memory::Holder heap_of(DomainId domain) {
  return Memory::of_heap(WorkerId{uint64_t{domain} + 1});
}

}  // namespace

void LaneMemory::on_grant_request(DomainId domain, const ipc::GrantRequest& event) {
  const bool slab = event.kind == ipc::GrantKind::kSlab;
  const Memory::Holder holder = slab ? slab_of(domain) : heap_of(domain);
  memory_.charge(holder, domain);
  memory_.request(holder, event.bytes, [this, slab, domain, event](const Status& granted) {
    slab ? give_slab(domain, event, granted) : give_heap(domain, event, granted);
  });
}

void LaneMemory::give_slab(DomainId domain, const ipc::GrantRequest& event, const Status& granted) {
  refusals_.note(domain, {}, granted);
  if (!granted) return domains_.answer_grant(domain, event.request, granted);
  const auto slab = pal::make_memfd("djinn-slab", event.bytes, pal::Seals::kSize);
  if (!slab.ok()) {
    memory_.release(slab_of(domain), event.bytes);
    return domains_.answer_grant(domain, event.request, slab.error());
  }
  if (memory_.held_by(slab_of(domain)) < event.bytes) return;  // the worker died meanwhile
  // The new one replaces the former, which nothing runs on while the lane asks.
  memory_.release(slab_of(domain), memory_.held_by(slab_of(domain)) - event.bytes);
  const int fds[] = {slab.value().get()};
  domains_.send(domain, {ipc::GiveSlab{event.request, event.bytes}}, fds);
}

void LaneMemory::give_heap(DomainId domain, const ipc::GrantRequest& event, const Status& granted) {
  refusals_.note(domain, {}, granted);
  domains_.answer_grant(domain, event.request, granted);
}

bool LaneMemory::on_grant_return(DomainId domain, const ipc::GrantReturn& event) {
  const bool slab = event.kind == ipc::GrantKind::kSlab;
  const Memory::Holder holder = slab ? slab_of(domain) : heap_of(domain);
  if (event.bytes > memory_.held_by(holder)) return false;
  memory_.release(holder, event.bytes);
  return true;
}

void LaneMemory::worker_died(DomainId domain) {
  memory_.release_all(slab_of(domain));
  memory_.release_all(heap_of(domain));
}

}  // namespace djinn::daemon
