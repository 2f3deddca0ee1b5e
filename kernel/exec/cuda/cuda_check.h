// SPDX-License-Identifier: Apache-2.0

// The device of a process, and calls of CUDA's runtime from places that cannot go on without them.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include "kernel/base/assert.h"

namespace djinn::exec {

// A worker sees one.
inline constexpr c10::DeviceIndex kOnlyDevice = 0;

// A copy or a fill that fails says that the device's context is gone, or that its arguments were
// wrong: nothing that this process computes can be believed from here on, so it ends.
inline void check_cuda(cudaError_t error) {
  DJINN_ASSERT(error == cudaSuccess);
}

}  // namespace djinn::exec
