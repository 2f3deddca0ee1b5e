// SPDX-License-Identifier: Apache-2.0

// Where tensors begin in memory that djinnd has granted: weights, refs, what a run computes and the
// copies that it takes of its inputs.
#pragma once

#include <cstdint>

namespace djinn {

// Bytes. What a GPU's allocator gives, and its libraries choose kernels by (so the bits of a result
// hang on it); the same for all devices, so that a plan or a manifest is of no one device. On the
// host it is a multiple of a cache line: no two tensors share one.
inline constexpr uint64_t kTensorAlignment = 512;

}  // namespace djinn
