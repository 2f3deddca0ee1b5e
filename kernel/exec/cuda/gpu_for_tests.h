// SPDX-License-Identifier: Apache-2.0

// A GPU for this folder's tests: the fake runtime, on which our own kernels are emulated and
// PyTorch's are computed by the host (tests/fake_cuda). Its memory is the host's, so tensors of the
// host are bound as they are.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "kernel/base/assert.h"
#include "kernel/exec/cuda/cuda_executor.h"
#include "kernel/exec/cuda/own_kernels.h"
#include "kernel/exec/executor_for_tests.h"

namespace djinn::exec {

// Of the host, poisoned.
class HostMemory final : public DeviceMemory {
 public:
  Outcome<void*> allocate(uint64_t bytes) override {
    const uint64_t rounded = (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    void* const memory = std::aligned_alloc(kTensorAlignment, rounded);
    DJINN_ASSERT(memory != nullptr);
    std::memset(memory, 0xa5, rounded);
    const std::lock_guard lock(mutex_);
    blocks_.emplace(memory, rounded);
    live_bytes_ += rounded;
    return memory;
  }
  void release(void* memory) override {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(memory);
    DJINN_ASSERT(block != blocks_.end());
    live_bytes_ -= block->second;
    blocks_.erase(block);
    std::free(memory);
  }
  void zero(void* memory, uint64_t bytes) override { std::memset(memory, 0, bytes); }
  [[nodiscard]] uint64_t live_bytes() const override {
    const std::lock_guard lock(mutex_);
    return live_bytes_;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<void*, uint64_t> blocks_;
  uint64_t live_bytes_ = 0;
};

// The process's, with our own kernels. Libraries give their memory back as it ends: it is never
// destroyed.
inline CudaExecutor& gpu() {
  static CudaExecutor& executor = [&]() -> CudaExecutor& {
    if (!is_allocator_installed()) initialise(2);
    auto made = CudaExecutor::make(*new HostMemory, [](std::string_view) {});
    DJINN_ASSERT(made.ok());
    const std::byte image[1] = {};  // the fake looks at none
    DJINN_ASSERT(made.value()->load_kernels(image).ok());
    return *made.value().release();
  }();
  return executor;
}

// Launches of our own kernels so far.
inline uint64_t own_launches() {
  using Count = uint64_t();
  static auto* const count =
      reinterpret_cast<Count*>(::dlsym(RTLD_DEFAULT, "djinn_fake_own_launches"));
  DJINN_ASSERT(count != nullptr);  // the fake runtime is not there: CTest sets LD_LIBRARY_PATH
  return count();
}

}  // namespace djinn::exec
