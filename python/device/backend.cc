// SPDX-License-Identifier: Apache-2.0

#include "python/device/backend.h"

#include <ATen/core/Generator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/random.h>

#include <cstring>

#include "kernel/exec/guard_dispatch.h"
#include "kernel/exec/own_operators.h"
#include "python/device/device.h"
#include "python/device/storage.h"

namespace djinn::device {
namespace {

constexpr c10::DeviceIndex kIndex = 0;
const c10::Device kDevice(kDeviceType, kIndex);

// This gives those of PyTorch's numbers that mean something here: what this process holds in
// djinnd, and what djinnd has granted for it. The others are 0.
class Allocator final : public c10::DeviceAllocator {
 public:
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { Device::get().give_back(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    check_index(index);
    const DeviceMemory memory = Device::get().memory();
    const uint64_t reserved = memory.own.granted_bytes + memory.own.shared_bytes;
    c10::CachingDeviceAllocator::DeviceStats stats;
    note(stats.allocated_bytes, memory.held_bytes, memory.most_bytes);
    note(stats.active_bytes, memory.held_bytes, memory.most_bytes);
    note(stats.reserved_bytes, reserved, std::max(reserved, memory.most_bytes));
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { check_index(index); }
  void resetPeakStats(c10::DeviceIndex index) override {
    check_index(index);
    Device::get().reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    check_index(index);
    const ipc::OwnMemory own = Device::get().memory_connected().own;
    return {own.free_bytes, own.total_bytes};
  }

  at::DataPtr allocate(size_t bytes) override {
    return storages().data_ptr(storages().make(bytes));
  }
  // Only storages come from here, so the deleter of a bare pointer has nothing to free.
  [[nodiscard]] at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "The device's memory cannot be copied by address; use copy_().");
  }

 private:
  static void note(c10::CachingAllocator::StatArray& stats, uint64_t now, uint64_t peak) {
    auto& all = stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    all.current = static_cast<int64_t>(now);
    all.peak = static_cast<int64_t>(peak);
  }
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  [[nodiscard]] c10::DeviceType type() const override { return kDeviceType; }
  [[nodiscard]] c10::Device exchangeDevice(c10::Device device) const override {
    check_index(device.index());
    return kDevice;
  }
  [[nodiscard]] c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device device) const override { check_index(device.index()); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  [[nodiscard]] c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  [[nodiscard]] c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(c10::DeviceIndex) const override { Device::get().synchronize(); }

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// The generator draws nothing itself: operators take (seed, offset) from it and advance the offset.
class Generator final : public c10::GeneratorImpl {
 public:
  Generator() : c10::GeneratorImpl(kDevice, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return kDeviceType; }

  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  void set_offset(uint64_t offset) override { state_.offset = offset; }
  [[nodiscard]] uint64_t get_offset() const override { return state_.offset; }
  [[nodiscard]] uint64_t current_seed() const override { return state_.seed; }
  uint64_t seed() override {
    uint64_t seed = 0;
    TORCH_CHECK(::getrandom(&seed, sizeof seed, 0) == sizeof seed, "The kernel gave no seed.");
    set_current_seed(seed);
    return seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == sizeof state_ && state.dtype() == at::kByte,
                "The state of a generator of the device is ", sizeof state_,
                " bytes: seed and offset.");
    std::memcpy(&state_, state.data(), sizeof state_);
  }
  [[nodiscard]] c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({static_cast<int64_t>(sizeof state_)}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &state_, sizeof state_);
    return state.getIntrusivePtr();
  }

 private:
  [[nodiscard]] c10::GeneratorImpl* clone_impl() const override {
    auto* const copy = new Generator;
    copy->state_ = state_;
    return copy;
  }

  RandomState state_{0x2545f4914f6cdd1dULL, 0};
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  [[nodiscard]] bool isBuilt() const override { return true; }
  [[nodiscard]] bool isAvailable() const override { return true; }
  [[nodiscard]] bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  [[nodiscard]] c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex index) const override { check_index(index); }
  [[nodiscard]] c10::DeviceIndex getCurrentDevice() const override { return kIndex; }
  [[nodiscard]] c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    check_index(index);
    return kIndex;
  }
  [[nodiscard]] c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return kIndex;
  }
  [[nodiscard]] const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    check_index(index);
    static const auto* const generator = new at::Generator(at::make_generator<Generator>());
    return *generator;
  }
  [[nodiscard]] at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    check_index(index);
    return at::make_generator<Generator>();
  }
  [[nodiscard]] at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  [[nodiscard]] bool isPinnedPtr(const void*) const override { return false; }
  // PyTorch asks for this in .to("cpu", non_blocking=True). What arrives is copied once, whatever
  // kind of memory it is, so the memory need not be pinned.
  [[nodiscard]] c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    Device::get().grow(storage_of(storage), bytes);
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace

void register_backend() {
  exec::register_operators();
  exec::register_guards();
  static auto* const allocator = new Allocator;
  c10::SetAllocator(kDeviceType, allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace djinn::device
