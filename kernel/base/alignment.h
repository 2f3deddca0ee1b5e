// SPDX-License-Identifier: Apache-2.0

// Where tensors begin in memory that djinnd has granted: weights, refs, and what a run computes in
// its slab. On the host, what kernels take of the heap beside it (recordings, runs that miss their
// plan, copies of inputs) begins where malloc has it, at multiples of 64.
#pragma once

#include <cstdint>

namespace djinn {

// Bytes. What a GPU's allocator gives, and its libraries choose kernels by (so the bits of a result
// hang on it); the same for all devices, so that a plan or a manifest is of no one device. On the
// host it is a multiple of a cache line: no two tensors share one.
inline constexpr uint64_t kTensorAlignment = 512;

}  // namespace djinn
