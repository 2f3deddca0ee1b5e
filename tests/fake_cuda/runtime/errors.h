// SPDX-License-Identifier: Apache-2.0

// The error of the calling thread's last call that had one.
#pragma once

#include <cuda_runtime_api.h>

namespace djinn::fake_runtime {

[[nodiscard]] cudaError_t last_error();
void forget_last_error();

}  // namespace djinn::fake_runtime
