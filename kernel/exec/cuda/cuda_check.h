// SPDX-License-Identifier: Apache-2.0

// Calls of CUDA's runtime from places that cannot go on without them.
#pragma once

#include <cuda_runtime_api.h>

#include "kernel/base/assert.h"

namespace djinn::exec {

// A copy or a fill that fails says that the device's context is gone, or that its arguments were
// wrong: nothing that this process computes can be believed from here on, so it ends.
inline void check_cuda(cudaError_t error) {
  DJINN_ASSERT(error == cudaSuccess);
}

}  // namespace djinn::exec
