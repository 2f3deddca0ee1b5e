// SPDX-License-Identifier: Apache-2.0

// The image of our own kernels, which lies beside the worker's program where NVIDIA's compiler has
// made one.
#pragma once

#include <cstddef>
#include <vector>

#include "kernel/base/result.h"

namespace djinn::worker {

// Before the worker is confined. Empty where there is none: programs whose numerics are fast are
// then as exact ones. Errors: kUnsupported where there is one that cannot be read.
Result<std::vector<std::byte>> read_kernels_image();

}  // namespace djinn::worker
