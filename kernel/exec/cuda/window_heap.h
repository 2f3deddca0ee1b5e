// SPDX-License-Identifier: Apache-2.0

// WindowHeap: blocks of a window of the device's memory, for whatever no plan places: what a
// library keeps, recordings, runs that miss their plan. It grows as the window's grants allow, and
// what is free goes back when the lane is trimmed.
//
// invariant: live blocks do not overlap, and the window covers all of them.
#pragma once

#include <mutex>

#include "kernel/exec/allocator_hook.h"
#include "kernel/vmu/extent_allocator.h"
#include "kernel/vmu/window.h"

namespace djinn::exec {

class WindowHeap final : public DeviceMemory, public HeapOwner {
 public:
  // The window is of a CUDA device, and nothing lives in it.
  explicit WindowHeap(vmu::Window window);

  Outcome<void*> allocate(uint64_t bytes) override;
  void release(void* memory) override;
  // On the calling thread's current stream. Throws what LibTorch's operators throw.
  void zero(void* memory, uint64_t bytes) override;
  [[nodiscard]] uint64_t live_bytes() const override;

  // Of the lane that has this for its memory: what it may hold says the window as it grows.
  Outcome<void> allow(uint64_t) override { return {}; }
  void settle(uint64_t) override {}
  // Nothing of the lane's is under way.
  void trim(uint64_t bytes) override;

 private:
  mutable std::mutex mutex_;
  vmu::Window window_;
  vmu::RangeAllocator ranges_;
};

}  // namespace djinn::exec
