// SPDX-License-Identifier: Apache-2.0

#include "python/device/storage.h"

#include <c10/util/strides.h>
#include <sys/mman.h>

#include <algorithm>

#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"

namespace djinn::device {
namespace {

// These are addresses only: an eighth of what a process has on x86-64. Once all have been used,
// they are used again from the start.
constexpr uint64_t kAddressBytes = uint64_t{1} << 44;
constexpr uint64_t kRoomAlignment = 64;

uintptr_t reservation() {
  static const uintptr_t start = [] {
    void* const memory = ::mmap(nullptr, kAddressBytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED,
                "No address space for the device's tensors is left. "
                "A limit on virtual memory (ulimit -v) would do that; lift it.");
    return reinterpret_cast<uintptr_t>(memory);
  }();
  return start;
}

std::atomic<uint64_t> held_now = 0;
std::atomic<uint64_t> held_most = 0;

void let_go(void* context) {
  auto* const holder = static_cast<StoragePtr*>(context);
  (*holder)->held = false;
  delete holder;
}

}  // namespace

Storage::~Storage() {
  Storages& all = storages();
  const std::lock_guard lock(all.mutex_);
  all.by_address_.erase(address);
  if (location == Location::kRef) all.garbage_.push_back(ref);
}

void Held::become(uint64_t bytes) {
  held_now += bytes - bytes_;  // which may wrap, and then wraps back
  bytes_ = bytes;
}

uint64_t Held::now() {
  return held_now;
}
uint64_t Held::most() {
  return held_most;
}
void Held::note(uint64_t bytes) {
  uint64_t most = held_most;
  while (bytes > most && !held_most.compare_exchange_weak(most, bytes)) {
  }
}
void Held::reset_most(uint64_t bytes) {
  held_most = bytes;
}

Lease::Lease(uint64_t model, uint64_t bytes) : model_(model), session_(storages().session()) {
  held_.become(bytes);
  Held::note(Held::now());
  Storages& all = storages();
  const std::lock_guard lock(all.mutex_);
  ++all.leases_;
}

Lease::~Lease() {
  Storages& all = storages();
  const std::lock_guard lock(all.mutex_);
  if (session_ != all.session_) return;
  --all.leases_;
  all.unused_models_.push_back(model_);
}

// `met` takes storages that were in the way, because they must not die under the lock.
uintptr_t Storages::place(uint64_t nbytes, std::vector<StoragePtr>& met) {
  const uint64_t room =
      std::max<uint64_t>((nbytes + kRoomAlignment - 1) / kRoomAlignment, 1) * kRoomAlignment;
  const uintptr_t start = reservation();
  TORCH_CHECK_WITH(OutOfMemoryError, room <= kAddressBytes / 4,
                   "The device is out of memory: a tensor of ", size_text(nbytes),
                   " was asked for, and none of more than ", size_text(kAddressBytes / 4),
                   " has addresses.");
  if (next_ < start || next_ + room > start + kAddressBytes) next_ = start;
  // Something can be in the way only after a turn around the reservation.
  for (auto taken = by_address_.lower_bound(next_);
       taken != by_address_.end() && taken->first < next_ + room;
       taken = by_address_.lower_bound(next_)) {
    met.push_back(taken->second.lock());
    next_ = taken->first + std::max<uint64_t>(met.back() ? met.back()->bytes : 0, 1);
    next_ = (next_ + kRoomAlignment - 1) / kRoomAlignment * kRoomAlignment;
    TORCH_CHECK_WITH(OutOfMemoryError, next_ + room <= start + kAddressBytes,
                     "The device is out of memory: this process's other tensors leave no "
                     "addresses for one of ",
                     size_text(nbytes), ".");
  }
  return std::exchange(next_, next_ + room);
}

StoragePtr Storages::make(uint64_t nbytes, at::ScalarType type) {
  auto storage = std::make_shared<Storage>();
  storage->born = entries_;
  storage->bytes = nbytes;
  storage->type = type;
  std::vector<StoragePtr> met;
  const std::lock_guard lock(mutex_);
  storage->address = place(nbytes, met);
  by_address_.emplace_hint(by_address_.end(), storage->address, storage);
  return storage;
}

at::DataPtr Storages::data_ptr(const StoragePtr& storage) {
  return {reinterpret_cast<void*>(storage->address), new StoragePtr(storage), &let_go,
          c10::Device(kDeviceType, 0)};
}

StoragePtr Storages::find(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = by_address_.find(reinterpret_cast<uintptr_t>(address));
  return found == by_address_.end() ? nullptr : found->second.lock();
}

void Storages::discard(RefHandle ref) {
  const std::lock_guard lock(mutex_);
  garbage_.push_back(ref);
}

std::vector<RefHandle> Storages::take_garbage() {
  const std::lock_guard lock(mutex_);
  return std::exchange(garbage_, {});
}

std::vector<uint64_t> Storages::take_unused_models() {
  const std::lock_guard lock(mutex_);
  return std::exchange(unused_models_, {});
}

std::vector<StoragePtr> Storages::alive() {
  std::vector<StoragePtr> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, storage] : by_address_) {
    if (StoragePtr one = storage.lock()) found.push_back(std::move(one));
  }
  return found;
}

void Storages::forget_shadows() {
  for (const StoragePtr& one : alive()) {
    if (one->location != Location::kHost) one->shadow = {};
  }
}

// Storages and leases take the lock themselves, so they must die outside of it.
void Storages::end_session() {
  {
    const std::lock_guard lock(mutex_);
    ++session_;
    leases_ = 0;
    garbage_.clear();
    unused_models_.clear();
  }
  for (const StoragePtr& one : alive()) {
    if (one->location == Location::kRef || one->location == Location::kWeight) lose(*one);
  }
  note_move();
}

void become_ref(Storage& storage, RefHandle ref) {
  storage.location = Location::kRef;
  storage.ref = ref;
  storage.held_bytes.become(storage.bytes);
}

void lose(Storage& storage, std::shared_ptr<const Error> failure) {
  storage.failure = std::move(failure);
  storage.location = Location::kLost;
  storage.held_bytes.become(0);
  storage.host = nullptr;
  storage.named = nullptr;
  storage.shadow = {};
}

size_t Storages::leases() {
  const std::lock_guard lock(mutex_);
  return leases_;
}

Storages& storages() {
  static auto* const all = new Storages;
  return *all;
}

c10::Storage as_torch(const StoragePtr& storage) {
  return c10::Storage(c10::Storage::use_byte_size_t{},
                      c10::SymInt(static_cast<int64_t>(storage->bytes)),
                      storages().data_ptr(storage), c10::GetAllocator(kDeviceType), true);
}

at::Tensor strided_tensor(c10::DispatchKey key, const c10::Storage& storage, at::ScalarType type,
                          at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::Tensor dense_tensor(const StoragePtr& storage, at::ScalarType type, at::IntArrayRef sizes) {
  return strided_tensor(c10::DispatchKey::PrivateUse1, as_torch(storage), type, sizes,
                        c10::contiguous_strides(sizes), 0);
}

uint64_t dense_bytes(at::IntArrayRef sizes, at::ScalarType type) {
  return static_cast<uint64_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
}

StoragePtr storage_of(const c10::Storage& storage) {
  const at::DataPtr& pointer = storage.data_ptr();
  if (pointer.get_deleter() == &let_go) return *static_cast<StoragePtr*>(pointer.get_context());
  StoragePtr found = storages().find(pointer.get());
  TORCH_CHECK(found != nullptr,
              "This tensor's bytes are not in djinnd: it was made from a pointer "
              "of another process or of a tensor that is gone. Use .cpu() to pass its values on.");
  return found;
}

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK_VALUE(index <= 0, "djinnd is one device, number 0; there is no number ",
                    static_cast<int>(index), ".");
}

StoragePtr storage_of(const at::Tensor& tensor) {
  return storage_of(tensor.storage());
}

}  // namespace djinn::device
