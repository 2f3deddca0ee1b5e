// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/lane_memory.h"

#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {

LaneMemory::Known& LaneMemory::known(WorkerKey key) {
  const auto [found, is_new] = known_.try_emplace(key);
  if (is_new) found->second.number = WorkerId{known_.size()};
  DJINN_ASSERT(found->second.number.valid());
  return found->second;
}

Memory::Holder LaneMemory::holder_of(WorkerKey key, ipc::GrantKind kind) {
  DJINN_ASSERT(is_of_lane(kind));
  const WorkerId number = known(key).number;
  return kind == ipc::GrantKind::kSlab ? Memory::of_lane(number) : Memory::of_heap(number);
}

void LaneMemory::on_grant_request(WorkerKey key, const ipc::GrantRequest& event) {
  const bool slab = event.kind == ipc::GrantKind::kSlab;
  const Memory::Holder holder = holder_of(key, event.kind);
  Memory& memory = devices_.of(key.device);
  memory.charge(holder, key.owner);
  const Lane lane{key, known(key).deaths};
  const auto answer = [this, slab, lane, event](const Status& granted) {
    slab ? slab_granted(lane, event, granted) : give_heap(lane.key, event, granted);
  };
  memory.request(holder, event.bytes, answer,
                 event.or_less ? vmu::Amount::kMore : vmu::Amount::kNeeded);
}

void LaneMemory::slab_granted(Lane lane, const ipc::GrantRequest& event, const Status& granted) {
  if (!event.or_less) refusals_.note(lane.key.owner, lane.key.device, {}, granted);
  if (!granted) return domains_.answer_grant(lane.key, event.request, granted);
  const auto made = [this, lane, event](Result<Fd> slab) {
    give_slab(lane, event, std::move(slab));
  };
  devices_.extents_of(lane.key.device).create(ExtentUse::kSlab, event.bytes, made);
}

void LaneMemory::give_slab(Lane lane, const ipc::GrantRequest& event, Result<Fd> made) {
  const Memory::Holder holder = holder_of(lane.key, ipc::GrantKind::kSlab);
  Memory& memory = devices_.of(lane.key.device);
  const uint64_t held = memory.held_by(holder);
  // The slab is not wanted if the worker died in the meantime: its grant has ended, or was given
  // back.
  const bool wanted = known(lane.key).deaths == lane.deaths && held >= event.bytes;
  if (!wanted) {
    if (made.ok()) devices_.extents_of(lane.key.device).free(*std::move(made));
    return;
  }
  if (!made.ok()) {
    memory.release(holder, event.bytes);
    return domains_.answer_grant(lane.key, event.request, made.error());
  }
  // The new slab replaces the former one, on which nothing runs while the lane asks.
  memory.release(holder, held - event.bytes);
  const int fds[] = {made.value().get()};
  domains_.send(lane.key, {ipc::GiveMemory{event.request, event.bytes}}, fds);
}

void LaneMemory::give_heap(WorkerKey key, const ipc::GrantRequest& event, const Status& granted) {
  if (!event.or_less) refusals_.note(key.owner, key.device, {}, granted);
  domains_.answer_grant(key, event.request, granted);
}

bool LaneMemory::on_grant_return(WorkerKey key, const ipc::GrantReturn& event) {
  const Memory::Holder holder = holder_of(key, event.kind);
  Memory& memory = devices_.of(key.device);
  if (event.bytes > memory.held_by(holder)) return false;
  memory.release(holder, event.bytes);
  return true;
}

uint64_t LaneMemory::heap_bytes(WorkerKey key) const {
  const auto found = known_.find(key);
  if (found == known_.end()) return 0;
  return devices_.of(key.device).held_by(Memory::of_heap(found->second.number));
}

uint64_t LaneMemory::bytes(WorkerKey key) const {
  const auto found = known_.find(key);
  if (found == known_.end()) return 0;
  return heap_bytes(key) + devices_.of(key.device).held_by(Memory::of_lane(found->second.number));
}

void LaneMemory::worker_died(WorkerKey key) {
  ++known(key).deaths;
  Memory& memory = devices_.of(key.device);
  memory.release_all(holder_of(key, ipc::GrantKind::kSlab));
  memory.release_all(holder_of(key, ipc::GrantKind::kHeap));
}

}  // namespace djinn::daemon
