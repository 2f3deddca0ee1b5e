// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/lane_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// Whether the places, of the heap alone, have the bytes that are asked for. Errors:
// kInvalidArgument.
Status check_places(const ipc::GrantRequest& event) {
  if (event.places.empty()) return {};
  uint64_t left = event.bytes;
  bool fits = event.kind == ipc::GrantKind::kHeap && event.places.size() <= limits::kRefChunks;
  for (const ipc::MemoryRange& place : event.places) {
    fits = fits && place.bytes > 0 && place.bytes <= left;
    left -= std::min(left, place.bytes);
  }
  if (fits && left == 0) return {};
  return Error{ErrorCode::kInvalidArgument, "A lane's memory is not of the places that it names."};
}

}  // namespace

LaneMemory::Known& LaneMemory::known(WorkerKey key) {
  const auto [found, is_new] = known_.try_emplace(key);
  if (is_new) {
    found->second.number = WorkerId{2 * known_.size() - 1};
    found->second.base = WorkerId{2 * known_.size()};
  }
  DJINN_ASSERT(found->second.number.valid());
  return found->second;
}

Memory::Holder LaneMemory::holder_of(WorkerKey key, ipc::GrantKind kind) {
  DJINN_ASSERT(is_of_lane(kind));
  const WorkerId number = known(key).number;
  return kind == ipc::GrantKind::kSlab ? Memory::of_lane(number) : Memory::of_heap(number);
}

void LaneMemory::on_grant_request(WorkerKey key, const ipc::GrantRequest& event) {
  if (const Status sound = check_places(event); !sound) {
    return domains_.answer_grant(key, event.request, sound);
  }
  const bool slab = event.kind == ipc::GrantKind::kSlab;
  if (!slab && event.places.empty() && key.device.kind == DeviceKind::kCuda) {
    return take_base({key, known(key).deaths}, event);
  }
  const Memory::Holder holder = holder_of(key, event.kind);
  Memory& memory = devices_.of(key.device);
  memory.charge(holder, key.owner);
  const Lane lane{key, known(key).deaths};
  const auto answer = [this, slab, lane, event](const Status& granted) {
    slab ? slab_granted(lane, event, granted) : heap_granted(lane, event, granted);
  };
  memory.request(holder, event.bytes, answer,
                 event.or_less ? vmu::Amount::kMore : vmu::Amount::kNeeded);
}

void LaneMemory::take_base(Lane lane, const ipc::GrantRequest& event) {
  const Memory::Holder base = Memory::of_heap(known(lane.key).base);
  Memory& memory = devices_.of(lane.key.device);
  if (memory.held_by(base) > 0 || memory.waits(base)) {
    return domains_.answer_grant(
        lane.key, event.request,
        Error{ErrorCode::kInvalidArgument, "A worker tells of its own memory once."});
  }
  memory.charge(base, lane.key.owner);
  memory.request(base, event.bytes, [this, lane, request = event.request](const Status& granted) {
    refusals_.note(lane.key.owner, lane.key.device, {}, granted);
    domains_.answer_grant(lane.key, request, granted);
    if (!granted && known(lane.key).deaths == lane.deaths) refused_(lane.key, granted.error());
  });
}

void LaneMemory::slab_granted(Lane lane, const ipc::GrantRequest& event, const Status& granted) {
  if (!event.or_less) refusals_.note(lane.key.owner, lane.key.device, {}, granted);
  if (!granted) return domains_.answer_grant(lane.key, event.request, granted);
  const auto made = [this, lane, event](Result<Fd> slab) {
    give_slab(lane, event, std::move(slab));
  };
  devices_.extents_of(lane.key.device).create(ExtentUse::kSlab, event.bytes, made);
}

// It is not if the worker died in the meantime: its grant has ended, or was given back.
bool LaneMemory::is_wanted(Lane lane, const ipc::GrantRequest& event) {
  const uint64_t held = devices_.of(lane.key.device).held_by(holder_of(lane.key, event.kind));
  return known(lane.key).deaths == lane.deaths && held >= event.bytes;
}

void LaneMemory::give_slab(Lane lane, const ipc::GrantRequest& event, Result<Fd> made) {
  const Memory::Holder holder = holder_of(lane.key, ipc::GrantKind::kSlab);
  Memory& memory = devices_.of(lane.key.device);
  ExtentSource& extents = devices_.extents_of(lane.key.device);
  if (!is_wanted(lane, event)) {
    if (made.ok()) extents.free(*std::move(made));
    return;
  }
  if (!made.ok()) {
    memory.release(holder, event.bytes);
    return domains_.answer_grant(lane.key, event.request, made.error());
  }
  // The new slab replaces the former one, on which nothing runs while the lane asks.
  memory.release(holder, memory.held_by(holder) - event.bytes);
  const int fds[] = {made.value().get()};
  domains_.send(lane.key, {ipc::GiveMemory{event.request, event.bytes}}, fds);
  extents.free(*std::move(made));  // the worker has it
}

void LaneMemory::heap_granted(Lane lane, const ipc::GrantRequest& event, const Status& granted) {
  if (!event.or_less) refusals_.note(lane.key.owner, lane.key.device, {}, granted);
  if (!granted || event.places.empty()) {
    return domains_.answer_grant(lane.key, event.request, granted);
  }
  std::vector<uint64_t> sizes;
  for (const ipc::MemoryRange& place : event.places) sizes.push_back(place.bytes);
  create_all(devices_.extents_of(lane.key.device), ExtentUse::kSlab, std::move(sizes),
             [this, lane, event](Result<std::vector<Fd>> made) {
               give_chunks(lane, event, std::move(made));
             });
}

// They need not outlive the worker, so it alone has them.
void LaneMemory::give_chunks(Lane lane, const ipc::GrantRequest& event,
                             Result<std::vector<Fd>> made) {
  const bool wanted = is_wanted(lane, event);
  if (!made) {
    if (!wanted) return;
    devices_.of(lane.key.device).release(holder_of(lane.key, event.kind), event.bytes);
    return domains_.answer_grant(lane.key, event.request, made.error());
  }
  std::vector<int> fds;
  for (const Fd& chunk : made.value()) fds.push_back(chunk.get());
  if (wanted) domains_.send(lane.key, {ipc::GiveMemory{event.request, event.bytes}}, fds);
  devices_.extents_of(lane.key.device).free(*std::move(made), [] {});
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
  const Memory& memory = devices_.of(key.device);
  return heap_bytes(key) + memory.held_by(Memory::of_lane(found->second.number)) +
         memory.held_by(Memory::of_heap(found->second.base));
}

void LaneMemory::worker_died(WorkerKey key) {
  ++known(key).deaths;
  Memory& memory = devices_.of(key.device);
  memory.release_all(holder_of(key, ipc::GrantKind::kSlab));
  memory.release_all(holder_of(key, ipc::GrantKind::kHeap));
  memory.release_all(Memory::of_heap(known(key).base));
}

}  // namespace djinn::daemon
