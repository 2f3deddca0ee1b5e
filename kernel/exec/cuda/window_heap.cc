// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/window_heap.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

namespace djinn::exec {

WindowHeap::WindowHeap(vmu::Window window)
    : window_(std::move(window)),
      ranges_(window_.size() - window_.size() % vmu::RangeAllocator::kGranuleBytes) {}

Outcome<void*> WindowHeap::allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  DJINN_TRY(const vmu::Range range, ranges_.allocate(bytes));
  Outcome<void> covered = window_.cover({&range, 1});
  if (!covered) {
    ranges_.free(range.offset);
    return std::move(covered).why_not();
  }
  return static_cast<void*>((window_.address() + range.offset).on_host());
}

void WindowHeap::release(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<uintptr_t>(window_.address().on_host());
  ranges_.free(reinterpret_cast<uintptr_t>(memory) - first);
}

void WindowHeap::zero(void* memory, uint64_t bytes) {
  C10_CUDA_CHECK(::cudaMemsetAsync(memory, 0, bytes, c10::cuda::getCurrentCUDAStream()));
}

void WindowHeap::trim(uint64_t) {
  const std::lock_guard lock(mutex_);
  window_.give_back(ranges_.free_ranges(), ranges_.high_water_bytes());
}

uint64_t WindowHeap::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return ranges_.live_bytes();
}

}  // namespace djinn::exec
