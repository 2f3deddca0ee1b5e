// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/cuda_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include "kernel/base/assert.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/cuda/only_device.h"

namespace djinn::exec {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

[[noreturn]] void not_offered(const char* what) {
  TORCH_CHECK(false, what, " is not offered by djinn's allocator.");
}

class CudaAllocator final : public caching::CUDAAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = allocate_on_device(bytes);
    return {memory, memory, &release_on_device, c10::Device(c10::kCUDA, kOnlyDevice)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_on_device; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    C10_CUDA_CHECK(::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                     c10::cuda::getCurrentCUDAStream()));
  }
  void* raw_alloc(size_t bytes) override { return allocate_on_device(bytes); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    TORCH_CHECK(stream == c10::cuda::getCurrentCUDAStream().stream(),
                "A lane has memory for its own stream only.");
    return allocate_on_device(bytes);
  }
  void raw_delete(void* memory) override { release_on_device(memory); }
  cudaError_t memcpyAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream,
                          bool) override {
    return ::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  // All that a lane does is on one stream.
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override {}

  void init(int) override { is_initialized_ = true; }
  bool initialized() override { return is_initialized_; }
  std::string name() override { return "djinn"; }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  // Libraries ask how large a workspace may be: none that is not there already.
  void cacheInfo(c10::DeviceIndex, size_t* largest) override { *largest = 0; }
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void setMemoryFraction(double, c10::DeviceIndex) override { not_offered("a memory fraction"); }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override {
    return {};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  caching::SnapshotInfo snapshot(c10::MempoolId_t, bool) override { not_offered("a snapshot"); }

  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                           std::function<bool(cudaStream_t)>) override {
    not_offered("a pool");
  }
  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override { not_offered("a pool"); }
  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override { not_offered("a pool"); }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex,
                                                              c10::MempoolId_t) override {
    not_offered("a checkpoint");
  }
  caching::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex, std::shared_ptr<caching::AllocatorState>) override {
    not_offered("a checkpoint");
  }
  void* getBaseAllocation(void*, size_t*) override { not_offered("a base allocation"); }
  caching::ShareableHandle shareIpcHandle(void*) override { not_offered("sharing memory"); }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { not_offered("sharing memory"); }
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override { not_offered("a peer"); }
  bool isHistoryEnabled() override { return false; }
  void recordHistory(bool, caching::CreateContextFn, size_t, caching::RecordContext, bool,
                     const std::vector<std::string>&) override {
    not_offered("a history");
  }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver) override {}
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker) override {
    not_offered("a history");
  }

 private:
  bool is_initialized_ = false;
};

// What was there before.
caching::CUDAAllocator* former_allocator = nullptr;
c10::Allocator* former_registered = nullptr;
constexpr uint8_t kPriority = 255;  // the highest there is

}  // namespace

void install_cuda_allocator() {
  // A storage remembers its allocator, so it must outlive them all.
  static auto* const allocator = new CudaAllocator;
  former_allocator = caching::allocator.exchange(allocator);
  DJINN_ASSERT(former_allocator != allocator &&
               (former_allocator == nullptr || !former_allocator->initialized()));
  former_registered = c10::GetAllocator(c10::kCUDA);
  c10::SetAllocator(c10::kCUDA, allocator, kPriority);
}

void remove_cuda_allocator() {
  caching::allocator.store(former_allocator);
  c10::SetAllocator(c10::kCUDA, former_registered, kPriority);
}

}  // namespace djinn::exec
