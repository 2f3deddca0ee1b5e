// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/load_queue.h"

#include <algorithm>
#include <utility>

#include "daemon/djinnd/loop/descriptors.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kLookMs = 1000;
// After this many looks a killed process has ended, or waits for a file system.
constexpr uint32_t kLooksToEnd = 2;

}  // namespace

LoadQueue::LoadQueue(Loop& loop, IdSource& ids, SparePool& loaders, const Devices& devices)
    : loop_(loop), ids_(ids), loaders_(loaders), devices_(devices), looks_(loop, [this] {
        look();
      }) {}

LoadId LoadQueue::add(std::vector<SharedFd> files, DeviceId device, Turn turn,
                      LoadListener& listener) {
  // The id must not be that of a load for which memory is still held.
  const auto id = ids_.next<LoadId>(
      [this](LoadId taken) { return loads_.contains(taken) || abandoned_.contains(taken); });
  Load::Holder& holder = *this;
  auto load = std::make_unique<Load>(loop_, loaders_, holder, listener, id, std::move(files));
  loads_.emplace(id, Entry{std::move(load), device, turn});
  queued_.push_back(id);
  start_loads();
  look_again_soon();
  if (loaders_.fails()) loop_.defer([this] { refuse_waiting(); });
  return id;
}

Load* LoadQueue::find(LoadId id) {
  const auto found = loads_.find(id);
  return found == loads_.end() ? nullptr : found->second.load.get();
}

void LoadQueue::abort(LoadId id) {
  if (Load* const load = find(id)) load->abort();
}

Status LoadQueue::check_loaders() const {
  if (loaders_.fails()) return loaders_.failure();
  return {};
}

void LoadQueue::refuse_waiting() {
  if (!loaders_.fails()) return;
  std::vector<LoadId> waiting;
  for (const auto& [id, entry] : loads_) {
    if (entry.load->phase() == LoadPhase::kWaiting) waiting.push_back(id);
  }
  for (const LoadId id : waiting) {
    if (Load* const load = find(id)) load->fail(loaders_.failure());
  }
}

size_t LoadQueue::running_of(const Turn& turn) const {
  const auto runs = [&](const auto& load) {
    return load.second.running && load.second.turn == turn;
  };
  return static_cast<size_t>(std::ranges::count_if(loads_, runs));
}

void LoadQueue::start_loads() {
  for (auto next = queued_.begin(); next != queued_.end();) {
    Entry& entry = loads_.at(*next);
    DJINN_ASSERT(!entry.running);
    if (entry.load->phase() == LoadPhase::kEnded) {
      next = queued_.erase(next);
      continue;
    }
    if (running_of(entry.turn) >= kLoadsPerUser) {
      ++next;
      continue;
    }
    entry.running = true;
    next = queued_.erase(next);
    entry.load->start();
  }
}

void LoadQueue::load_ended(LoadId id) {
  const auto found = loads_.find(id);
  if (found == loads_.end()) return;  // its loader died while it was being given back
  DJINN_ASSERT(found->second.load->phase() == LoadPhase::kEnded);
  found->second.load->listener().load_ended(id);
  const DeviceId device = found->second.device;
  pass_on(id);
  std::erase(queued_, id);
  loop_.dispose(std::move(loads_.extract(id).mapped().load));
  free_abandoned(id, device);
  start_loads();
}

// --- looks

// If a timer runs already, it is left alone, so that later loads do not put a look off.
void LoadQueue::look_again_soon() {
  if (!looks_.active()) looks_.start_once(kLookMs);
}

// A queued load counts as waiting for files: those of its user's other loads, which run before it,
// may stay silent for long. A load that waits for a loader process does not count.
bool LoadQueue::is_on_files(const Entry& entry) {
  switch (entry.load->phase()) {
    case LoadPhase::kWaiting:
      return !entry.running;
    case LoadPhase::kIdentifying:
    case LoadPhase::kPlanning:
    case LoadPhase::kReading:
      return true;
    default:
      return false;
  }
}

void LoadQueue::look() {
  std::vector<LoadId> looked_at;
  for (auto& [id, entry] : loads_) {
    if (entry.running) entry.load->go_on();
    looked_at.push_back(id);
  }
  if (!looked_at.empty()) look_again_soon();
  for (auto& [id, abandoned] : abandoned_) {
    if (abandoned.extents.empty()) continue;
    look_again_soon();
    if (++abandoned.looks >= kLooksToEnd) take_memory_back(id, abandoned);
  }
  for (const LoadId id : looked_at) {
    const auto found = loads_.find(id);
    if (found == loads_.end() || found->second.load->phase() == LoadPhase::kEnded) continue;
    Load& load = *found->second.load;
    load.listener().load_looked_at(load, is_on_files(found->second));
  }
}

// --- memory

void LoadQueue::request_memory(const Load& load, uint64_t bytes, Memory::Granted granted) {
  DJINN_ASSERT(load.phase() == LoadPhase::kGranting);
  const auto answer = [this, id = load.id(), granted = std::move(granted)](const Status& status) {
    const Load* const asked = find(id);
    const bool waits = asked != nullptr && asked->phase() == LoadPhase::kGranting;
    if (waits) granted(status);  // else it was given up, and load_ended() releases
  };
  devices_.of(loads_.at(load.id()).device).request(Memory::of_load(load.id()), bytes, answer);
}

bool LoadQueue::waits_for_memory(const Model& model) const {
  return devices_.of(model.device()).waits(Memory::of_load(model.load));
}

void LoadQueue::hand_over(const Load& load, ModelId model) {
  devices_.of(loads_.at(load.id()).device)
      .hand_over(Memory::of_load(load.id()), Memory::of_model(model));
}

void LoadQueue::make_extents(const Load& load, const std::vector<uint64_t>& sizes, Made made) {
  DJINN_ASSERT(load.phase() == LoadPhase::kGranting);
  ExtentSource& source = devices_.extents_of(loads_.at(load.id()).device);
  create_all(
      source, ExtentUse::kWeights, sizes,
      [this, &source, id = load.id(), made = std::move(made)](Result<std::vector<Fd>> extents) {
        const Load* const granted = find(id);
        const bool is_wanted = granted != nullptr && granted->phase() == LoadPhase::kGranting;
        const bool is_new = extents && !extents->empty();
        const Status left = is_new ? check_descriptors_left(extents->back()) : Status();
        if (is_wanted && left) return made(std::move(extents));
        if (extents) source.free(*std::move(extents), [] {});
        if (is_wanted) made(left.error());
      });
}

Status LoadQueue::seal(const Model& model) {
  DJINN_ASSERT(model.phase == ModelPhase::kLoading && !model.extents.empty());
  ExtentSource& source = devices_.extents_of(model.device());
  for (const Fd& extent : model.extents) DJINN_CHECK(source.seal(extent));
  return {};
}

void LoadQueue::abandon(Model& model) {
  DJINN_ASSERT(model.phase == ModelPhase::kLoading && loads_.contains(model.load));
  DJINN_ASSERT(!abandoned_.contains(model.load));
  // Once sealed, the extents of a return belong to the model; here the load gets their memory back.
  devices_.of(model.device()).hand_over(Memory::of_model(model.id), Memory::of_load(model.load));
  abandoned_.emplace(model.load, Abandoned{model.device(), std::exchange(model.extents, {})});
  model.huge_bytes = 0;
  look_again_soon();
}

// Frees the extents of an abandoned load, whose loader no longer has them.
void LoadQueue::free_abandoned(LoadId id, DeviceId device) {
  const auto found = abandoned_.find(id);
  if (found == abandoned_.end()) return release(id, device);
  Abandoned& abandoned = found->second;
  if (abandoned.freeing) return;
  if (abandoned.extents.empty()) return release(id, device);
  abandoned.freeing = true;
  devices_.extents_of(device).free(std::exchange(abandoned.extents, {}),
                                   [this, id, device] { release(id, device); });
}

void LoadQueue::release(LoadId id, DeviceId device) {
  abandoned_.erase(id);
  devices_.of(device).release_all(Memory::of_load(id));
}

void LoadQueue::take_memory_back(LoadId id, Abandoned& abandoned) {
  DJINN_ASSERT(!abandoned.freeing);
  abandoned.freeing = true;
  const std::vector<Fd> extents = std::exchange(abandoned.extents, {});
  const DeviceId device = abandoned.device;
  devices_.extents_of(device).decommit(extents, [this, id, device](bool freed) {
    if (freed || !loads_.contains(id)) return release(id, device);
    abandoned_.at(id).freeing = false;  // sealed: it has closed its files, and ends
  });
}

void LoadQueue::leave_to(std::set<LoadId> loads, const Model& model) {
  DJINN_ASSERT(!loads.empty());
  const LoadId first = *loads.begin();
  loads.erase(first);
  DJINN_ASSERT(!left_to_.contains(first));
  devices_.of(model.device()).hand_over(Memory::of_model(model.id), Memory::of_load(first));
  left_to_.emplace(first, Left{model.device(), std::move(loads)});
}

void LoadQueue::pass_on(LoadId id) {
  for (auto& [holder, left] : left_to_) left.others.erase(id);
  auto left = left_to_.extract(id);
  if (left.empty() || left.mapped().others.empty()) return;
  const LoadId next = *left.mapped().others.begin();
  left.mapped().others.erase(next);
  devices_.of(left.mapped().device).hand_over(Memory::of_load(id), Memory::of_load(next));
  left.key() = next;
  left_to_.insert(std::move(left));
}

uint64_t LoadQueue::leaving_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [id, abandoned] : abandoned_) {
    if (abandoned.device == device) bytes += devices_.of(device).held_by(Memory::of_load(id));
  }
  return bytes;
}

void LoadQueue::count(const ipc::Loaded& loaded) {
  bytes_read_ += loaded.bytes_read;
  buffered_reads_ += loaded.buffered_reads;
}

}  // namespace djinn::daemon
