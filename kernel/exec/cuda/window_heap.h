// SPDX-License-Identifier: Apache-2.0

// WindowHeap: blocks of a window of the device's memory, for whatever no plan places: what a
// library keeps, recordings, runs that miss their plan. It grows as the window's grants allow.
//
// invariant: live blocks do not overlap, and the window covers all of them.
#pragma once

#include <mutex>

#include "kernel/exec/allocator_hook.h"
#include "kernel/vmu/extent_allocator.h"
#include "kernel/vmu/window.h"

namespace djinn::exec {

class WindowHeap final : public DeviceMemory {
 public:
  // The window is of a CUDA device, and nothing lives in it.
  explicit WindowHeap(vmu::Window window);

  Outcome<void*> allocate(uint64_t bytes) override;
  void release(void* memory) override;
  // On the calling thread's current stream.
  void zero(void* memory, uint64_t bytes) override;
  [[nodiscard]] uint64_t live_bytes() const override;

 private:
  mutable std::mutex mutex_;
  vmu::Window window_;
  vmu::RangeAllocator ranges_;
};

}  // namespace djinn::exec
