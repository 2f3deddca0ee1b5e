// SPDX-License-Identifier: Apache-2.0

// The functions stand in the order of a copy's life.
#include "daemon/djinnd/models/copies.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"

namespace djinn::daemon {
namespace {

// A mover's death costs a part that is being uploaded, and the next repeats it.
constexpr uint64_t kUploadBytes = uint64_t{64} << 20;
// That a thread reads at once of the host's extents.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

uint64_t rounded_up(uint64_t bytes, uint64_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

Error is_leaving() {
  return {ErrorCode::kBusy, "The model's copy is being dropped. Repeat this then."};
}

Error was_cut_short() {
  return {ErrorCode::kCancelled, "The model's copy was dropped before it was complete."};
}

Result<ChecksumKey> draw_key() {
  ChecksumKey key{};
  if (::getrandom(key.data(), sizeof key, 0) == sizeof key) return key;
  return system_error("draw the key of a checksum", errno);
}

// Adds so many bytes of the extent, and zeros up to the size of the copy's.
Status add_extent(KeyedChecksum& sum, int extent, uint64_t bytes, uint64_t size,
                  const std::atomic<bool>& stop) {
  std::vector<std::byte> piece(kPieceBytes);
  for (uint64_t at = 0; at < size;) {
    if (stop) return Error{ErrorCode::kCancelled, "It is given up."};
    const uint64_t count = std::min(kPieceBytes, size - at);
    const uint64_t there = at < bytes ? std::min(count, bytes - at) : 0;
    for (uint64_t read = 0; read < there;) {
      const ssize_t got =
          ::pread(extent, piece.data() + read, there - read, static_cast<off_t>(at + read));
      if (got <= 0) return system_error("read a model's extent", got < 0 ? errno : EIO);
      read += static_cast<uint64_t>(got);
    }
    std::fill(piece.begin() + static_cast<ptrdiff_t>(there),
              piece.begin() + static_cast<ptrdiff_t>(count), std::byte{0});
    sum.add(std::span(piece).first(count));
    at += count;
  }
  return {};
}

}  // namespace

bool may_follow(CopyPhase from, CopyPhase to) {
  using enum CopyPhase;
  static constexpr auto kLegal = std::to_array<Transition<CopyPhase>>({
      {kGranting, kMaking},
      {kGranting, kComparing},
      {kMaking, kFilling},
      {kFilling, kComparing},
      {kComparing, kFilling},
      {kComparing, kThere},
      {kThere, kComparing},
  });
  return is_listed(kLegal, from, to) || (to == kLeaving && from != kLeaving);
}

Copies::Copies(Loop& loop, const Devices& devices, const Gpus& gpus, Replies& replies,
               Events& events, ModelTable& table, Listener& listener)
    : loop_(loop),
      devices_(devices),
      gpus_(gpus),
      replies_(replies),
      events_(events),
      table_(table),
      listener_(listener) {}

Copies::~Copies() {
  for (const auto& [key, copy] : all_) *copy->stop = true;
}

// --- a copy comes

void Copies::place(const Waiter& waiter, const Model& model, DeviceId device) {
  const Gpu* const gpu = gpus_.find(device);
  DJINN_ASSERT(gpu != nullptr);
  if (model.phase != ModelPhase::kResident) {
    return replies_.refuse(waiter, {ErrorCode::kBusy,
                                    "The model is not in the host's memory, or is leaving it. Load "
                                    "it, then repeat."});
  }
  if (!gpu->takes_orders()) return replies_.refuse(waiter, gpu->not_ready());
  const Key key{model.id, device};
  const bool is_new = !all_.contains(key);
  Copy& copy = is_new ? add(key, model) : *all_.at(key);
  if (copy.phase == CopyPhase::kLeaving) return replies_.refuse(waiter, is_leaving());
  copy.waiters.push_back(waiter);
  copy.last_used = ++uses_;
  if (copy.phase == CopyPhase::kThere) {
    copy.uploaded_bytes = 0;
    return compare(copy);
  }
  if (is_new) request(copy);
}

void Copies::want(const Model& model, DeviceId device) {
  const Gpu* const gpu = gpus_.find(device);
  DJINN_ASSERT(gpu != nullptr && model.phase == ModelPhase::kResident);
  const Key key{model.id, device};
  if (const auto found = all_.find(key); found != all_.end()) {
    found->second->is_wanted_again = found->second->phase == CopyPhase::kLeaving;
    found->second->last_used = ++uses_;
    return;
  }
  if (gpu->takes_orders()) {
    Copy& copy = add(key, model);
    copy.last_used = ++uses_;
    return request(copy);
  }
  tell_failure(key, gpu->not_ready());
}

void Copies::touch(ModelId model, DeviceId device) {
  const auto found = all_.find(Key{model, device});
  if (found != all_.end()) found->second->last_used = ++uses_;
}

const std::vector<Fd>* Copies::extents_of(ModelId model, DeviceId device) const {
  const auto found = all_.find(Key{model, device});
  const bool is_there = found != all_.end() && found->second->phase == CopyPhase::kThere;
  return is_there ? &found->second->extents : nullptr;
}

void Copies::check(const Model& model, DeviceId device) {
  const auto found = all_.find(Key{model.id, device});
  if (found == all_.end()) return;
  Copy& copy = *found->second;
  if (copy.phase == CopyPhase::kThere) return compare(copy);
  // What was read already might have been written to after that.
  if (copy.phase == CopyPhase::kComparing) copy.is_suspect = true;
}

void Copies::let_go(ModelId model) {
  for (const auto& [key, copy] : all_) {
    if (key.first == model) free_if_let_go(*copy);
  }
}

Copies::Copy& Copies::add(Key key, const Model& model) {
  const auto [at, is_new] = all_.emplace(key, std::make_unique<Copy>(key));
  DJINN_ASSERT(is_new);
  Copy& copy = *at->second;
  const uint64_t granule = devices_.extents_of(key.second).granularity_bytes();
  for (const uint64_t bytes : model.extent_bytes) {
    copy.sizes.push_back(rounded_up(bytes, granule));
    copy.bytes += copy.sizes.back();
  }
  return copy;
}

void Copies::request(Copy& copy) {
  copy.is_busy = true;
  const auto [id, device] = copy.key;
  devices_.of(device).request(
      Memory::of_model(id), copy.bytes,
      [this, key = copy.key](const Status& status) { granted(key, status); });
}

void Copies::granted(Key key, const Status& status) {
  Copy& copy = *all_.at(key);
  if (!is_back(copy)) return;
  if (!status) return fail(copy, status.error());
  copy.granted_bytes = copy.bytes;
  if (!copy.extents.empty()) return compare(copy);
  copy.phase.enter(CopyPhase::kMaking);
  copy.is_busy = true;
  create_all(devices_.extents_of(key.second), ExtentUse::kWeights, copy.sizes,
             [this, key](Result<std::vector<Fd>> extents) { made(key, std::move(extents)); });
}

void Copies::made(Key key, Result<std::vector<Fd>> extents) {
  Copy& copy = *all_.at(key);
  if (extents) copy.extents = *std::move(extents);
  if (!is_back(copy)) return;
  if (!extents) return fail(copy, extents.error());
  fill(copy);
}

void Copies::fill(Copy& copy) {
  copy.phase.enter(CopyPhase::kFilling);
  copy.extent = 0;
  copy.offset = 0;
  fill_on(copy);
}

void Copies::fill_on(Copy& copy) {
  const Model& model = model_of(copy);
  if (copy.extent == copy.extents.size()) return compare(copy);
  const size_t n = copy.extent;
  const uint64_t bytes = std::min(kUploadBytes, model.extent_bytes[n] - copy.offset);
  const ipc::UploadRange range{copy.offset, copy.offset, bytes};
  order(copy, ipc::UploadExtent{copy.sizes[n], {range}},
        {model.extents[n].get(), copy.extents[n].get()},
        [this, bytes](Copy& filled, const MoverAnswer&) {
          filled.uploaded_bytes += bytes;
          filled.offset += bytes;
          if (filled.offset == model_of(filled).extent_bytes[filled.extent]) {
            ++filled.extent;
            filled.offset = 0;
          }
          fill_on(filled);
        });
}

void Copies::compare(Copy& copy) {
  copy.phase.enter(CopyPhase::kComparing);
  add_up(copy);
}

void Copies::add_up(Copy& copy) {
  copy.is_suspect = false;
  copy.is_busy = true;
  const Model& model = model_of(copy);
  std::vector<int> extents;
  for (const Fd& extent : model.extents) extents.push_back(extent.get());
  auto& work = sums_work_[copy.key.second];
  if (work == nullptr) work = std::make_unique<WorkQueue>(loop_, "sums");
  work->run([extents, bytes = model.extent_bytes, sizes = copy.sizes,
             stop = copy.stop] { return sums_of(extents, bytes, sizes, *stop); },
            [this, key = copy.key](Result<Sums> sums) { has_sums(key, std::move(sums)); });
}

Result<Copies::Sums> Copies::sums_of(const std::vector<int>& extents,
                                     const std::vector<uint64_t>& bytes,
                                     const std::vector<uint64_t>& sizes,
                                     const std::atomic<bool>& stop) {
  Sums sums;
  DJINN_TRY(sums.key, draw_key());
  for (size_t i = 0; i < extents.size(); ++i) {
    KeyedChecksum sum(sums.key);
    DJINN_CHECK(add_extent(sum, extents[i], bytes[i], sizes[i], stop));
    sums.of_extents.push_back(sum.value());
  }
  return sums;
}

void Copies::has_sums(Key key, Result<Sums> sums) {
  Copy& copy = *all_.at(key);
  if (!is_back(copy)) return;
  if (!sums) return fail(copy, sums.error());
  copy.sums = *std::move(sums);
  copy.extent = 0;
  compare_on(copy);
}

void Copies::compare_on(Copy& copy) {
  if (copy.extent == copy.extents.size()) return copy.is_suspect ? add_up(copy) : arrived(copy);
  const size_t n = copy.extent;
  order(copy, ipc::ChecksumExtent{copy.sizes[n], copy.sums->key}, {copy.extents[n].get()},
        [this](Copy& compared, const MoverAnswer& answer) {
          const Checksum sum = std::get<ipc::Checksummed>(answer.body).sum;
          if (sum != compared.sums->of_extents[compared.extent]) return differs(compared);
          ++compared.extent;
          compare_on(compared);
        });
}

void Copies::differs(Copy& copy) {
  const auto& [id, device] = copy.key;
  Event event =
      device_event(device, EventKind::kCopyDiffered,
                   fmt::format("the copy of model {} on {} holds other bytes than the model",
                               text_of(id), text_of(device)));
  event.model = id;
  event.owner = model_of(copy).owner();
  event.error = ErrorCode::kHashMismatch;
  events_.emit(std::move(event));
  if (!listener_.is_let_go(id, device)) {
    // Whoever computes with it has its bytes, and never zeros, until all have let go.
    copy.is_wanted_again = true;
    return leave(copy);
  }
  if (std::exchange(copy.is_refilled, true)) {
    return fail(copy, {ErrorCode::kHashMismatch,
                       fmt::format("What is copied to {} comes back as other bytes. Look for Xids "
                                   "in the kernel's log, and reset the GPU.",
                                   text_of(device))});
  }
  copy.extent = 0;
  copy.phase.enter(CopyPhase::kFilling);
  zero_on(copy);
}

void Copies::zero_on(Copy& copy) {
  if (copy.extent == copy.extents.size()) {
    copy.extent = 0;
    copy.offset = 0;
    return fill_on(copy);
  }
  const size_t n = copy.extent;
  order(copy, ipc::ZeroExtent{copy.sizes[n]}, {copy.extents[n].get()},
        [this](Copy& zeroed, const MoverAnswer&) {
          ++zeroed.extent;
          zero_on(zeroed);
        });
}

void Copies::arrived(Copy& copy) {
  copy.phase.enter(CopyPhase::kThere);
  copy.is_refilled = false;
  const auto [id, device] = copy.key;
  if (!std::exchange(copy.is_told, true)) {
    Event event = device_event(device, EventKind::kCopyPlaced,
                               fmt::format("model {} has a copy on {}: {}", text_of(id),
                                           text_of(device), size_text(copy.bytes)));
    event.model = id;
    event.owner = model_of(copy).owner();
    event.bytes = copy.bytes;
    events_.emit(std::move(event));
  }
  replies_.owe_each(std::exchange(copy.waiters, {}),
                    ipc::ModelPlaced{copy.bytes, copy.uploaded_bytes});
  // Handed out before others may have it dropped.
  listener_.copy_came(id, device);
  listener_.copies_changed();
  devices_.of(device).reconsider();
}

// --- of a predecessor

void Copies::take_back(ModelId model, DeviceId device, std::vector<Fd> extents) {
  DJINN_ASSERT(gpus_.find(device) != nullptr);
  returned_[{model, device}] = std::move(extents);
}

void Copies::gpu_ready(DeviceId device) {
  std::vector<Key> keys;
  for (const auto& [key, extents] : returned_) {
    if (key.second == device) keys.push_back(key);
  }
  for (const Key& key : keys) {
    std::vector<Fd> extents = std::move(returned_.extract(key).mapped());
    const Model* const model = table_.find(key.first);
    const ExtentSource& source = devices_.extents_of(device);
    const bool fits = model != nullptr && model->phase == ModelPhase::kResident &&
                      model->extents.size() == extents.size() && !all_.contains(key);
    Copy* const copy = fits ? &add(key, *model) : nullptr;
    if (copy != nullptr) {
      copy->extents = std::move(extents);
      copy->is_kept = true;
    }
    bool is_sound = fits;
    for (size_t i = 0; is_sound && i < copy->extents.size(); ++i) {
      is_sound = source.check_sealed(copy->extents[i], copy->sizes[i]).ok();
    }
    if (is_sound) {
      request(*copy);
    } else if (copy != nullptr) {
      leave(*copy);
    } else {
      devices_.extents_of(device).free(std::move(extents), [] {});
    }
  }
  if (!keys.empty()) listener_.copies_changed();
}

void Copies::gpu_lost(DeviceId device) {
  leave_each([device](const Key& key) { return key.second == device; });
}

std::vector<Copies::Kept> Copies::kept() const {
  std::vector<Kept> kept;
  for (const auto& [key, extents] : returned_) kept.push_back({key.first, key.second, &extents});
  for (const auto& [key, copy] : all_) {
    if ((copy->is_told || copy->is_kept) && copy->phase != CopyPhase::kLeaving) {
      kept.push_back({key.first, key.second, &copy->extents});
    }
  }
  return kept;
}

// --- it leaves

void Copies::drop(const Waiter& waiter, const Model& model) {
  Copy* last = nullptr;
  for (const auto& [key, copy] : all_) {
    if (key.first != model.id) continue;
    leave(*copy);
    last = copy.get();
  }
  if (last == nullptr) return replies_.done(waiter);
  last->drop_waiters.push_back(waiter);
}

void Copies::drop(ModelId model) {
  leave_each([model](const Key& key) { return key.first == model; });
}

void Copies::leave(Copy& copy) {
  fail(copy, was_cut_short());
}

void Copies::leave_each(const std::function<bool(const Key&)>& whose) {
  for (const auto& [key, copy] : all_) {
    if (whose(key)) leave(*copy);
  }
  for (auto next = returned_.begin(); next != returned_.end();) {
    const auto returned = next++;
    if (!whose(returned->first)) continue;
    devices_.extents_of(returned->first.second).free(std::move(returned->second), [] {});
    returned_.erase(returned);
  }
}

// Later, because who wants a copy may be in the middle of it.
void Copies::tell_failure(Key key, Error why) {
  loop_.defer(
      [this, key, why = std::move(why)] { listener_.copy_failed(key.first, key.second, why); });
}

// What is on its way comes back, and then the copy is freed.
void Copies::fail(Copy& copy, const Error& why) {
  if (copy.phase == CopyPhase::kLeaving) return;
  const bool is_granting = copy.phase == CopyPhase::kGranting;
  const auto [id, device] = copy.key;
  if (!copy.is_wanted_again) {
    if (copy.phase != CopyPhase::kThere) tell_failure(copy.key, why);
    replies_.refuse_each(std::exchange(copy.waiters, {}), why);
  }
  copy.phase.enter(CopyPhase::kLeaving);
  *copy.stop = true;
  listener_.copy_leaves(id, device);
  listener_.copies_changed();
  if (is_granting && copy.is_busy) {
    return devices_.of(device).cancel(Memory::of_model(id));  // granted() hears of it
  }
  if (copy.order != 0 && gpu_of(copy).cancel(copy.order)) copy.is_busy = false;
  free_if_let_go(copy);
}

void Copies::free_if_let_go(Copy& copy) {
  const auto [id, device] = copy.key;
  const bool is_last = copy.phase == CopyPhase::kLeaving && !copy.is_busy && !copy.is_freeing;
  if (is_last && listener_.is_let_go(id, device)) free(copy);
}

void Copies::free(Copy& copy) {
  copy.is_freeing = true;
  devices_.extents_of(copy.key.second).free(std::move(copy.extents), [this, key = copy.key] {
    gone(key);
  });
}

void Copies::gone(Key key) {
  const auto [id, device] = key;
  const std::unique_ptr<Copy> copy = std::move(all_.extract(key).mapped());
  devices_.of(device).release_all(Memory::of_model(id));
  if (copy->is_told) {
    Event event = device_event(device, EventKind::kCopyDropped,
                               fmt::format("the copy of model {} on {} is dropped: {}", text_of(id),
                                           text_of(device), size_text(copy->bytes)));
    event.model = id;
    event.bytes = copy->bytes;
    if (const Model* const model = table_.find(id)) event.owner = model->owner();
    events_.emit(std::move(event));
  }
  if (has(id)) {
    // Who waits for all of the model's copies to be gone waits for the others.
    auto& next = all_.lower_bound(Key{id, DeviceId{}})->second->drop_waiters;
    std::ranges::copy(copy->drop_waiters, std::back_inserter(next));
  } else {
    replies_.owe_each(copy->drop_waiters, ipc::Done{});
    listener_.copies_gone(id);
  }
  const Model* const model = table_.find(id);
  const bool is_resident = model != nullptr && model->phase == ModelPhase::kResident;
  if (copy->is_wanted_again && is_resident) want(*model, device);
  for (const Waiter& waiter : copy->waiters) {
    if (is_resident) {
      place(waiter, *model, device);
    } else {
      replies_.refuse(waiter, was_cut_short());
    }
  }
}

// --- orders

void Copies::order(Copy& copy, MoverLink::Body body, std::vector<int> fds,
                   std::function<void(Copy&, const MoverAnswer&)> then) {
  DJINN_ASSERT(!copy.is_busy);
  copy.is_busy = true;
  copy.order = gpu_of(copy).order(
      std::move(body), std::move(fds),
      [this, key = copy.key, then = std::move(then)](const Result<MoverAnswer>& answer) {
        Copy& ordered = *all_.at(key);
        ordered.order = 0;
        if (!is_back(ordered)) return;
        if (!answer) return fail(ordered, answer.error());
        then(ordered, answer.value());
      });
}

bool Copies::is_back(Copy& copy) {
  DJINN_ASSERT(copy.is_busy);
  copy.is_busy = false;
  if (copy.phase != CopyPhase::kLeaving) return true;
  free_if_let_go(copy);
  return false;
}

const Model& Copies::model_of(const Copy& copy) const {
  const Model* const model = table_.find(copy.key.first);
  DJINN_ASSERT(model != nullptr && model->extents.size() == copy.sizes.size());
  return *model;
}

Gpu& Copies::gpu_of(const Copy& copy) const {
  Gpu* const gpu = gpus_.find(copy.key.second);
  DJINN_ASSERT(gpu != nullptr);
  return *gpu;
}

// --- for others

bool Copies::has(ModelId model) const {
  const auto at = all_.lower_bound(Key{model, DeviceId{}});
  return at != all_.end() && at->first.first == model;
}

uint32_t Copies::places_of(ModelId model) const {
  uint32_t places = 0;
  for (const auto& [key, copy] : all_) {
    const bool is_there =
        copy->phase == CopyPhase::kThere || (copy->is_told && copy->phase == CopyPhase::kComparing);
    if (key.first == model && is_there) places |= uint32_t{1} << key.second.index;
  }
  return places;
}

std::vector<Weights::Candidate> Copies::evictable(DeviceId device, bool in_use) const {
  std::vector<const Copy*> found;
  for (const auto& [key, copy] : all_) {
    const bool goes = key.second == device && copy->phase == CopyPhase::kThere;
    if (!goes) continue;
    const Model& model = model_of(*copy);
    const bool stays = model.pinned() || model.has_openers_on(device);
    if (!stays && listener_.is_held(model.id, device) == in_use) found.push_back(copy.get());
  }
  std::ranges::sort(found, {}, &Copy::last_used);
  std::vector<Candidate> candidates;
  for (const Copy* copy : found) candidates.push_back({copy->key.first, copy->bytes});
  return candidates;
}

uint64_t Copies::leaving_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [key, copy] : all_) {
    const bool leaves = key.second == device && copy->phase == CopyPhase::kLeaving;
    if (leaves) bytes += copy->granted_bytes;
  }
  return bytes;
}

uint64_t Copies::held_up_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [key, copy] : all_) {
    const bool leaves = key.second == device && copy->phase == CopyPhase::kLeaving;
    if (leaves && listener_.is_held_up(key.first, device)) bytes += copy->granted_bytes;
  }
  return bytes;
}

uint64_t Copies::pinned_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const auto& [key, copy] : all_) {
    if (key.second == device && model_of(*copy).pinned()) bytes += copy->granted_bytes;
  }
  return bytes;
}

}  // namespace djinn::daemon
