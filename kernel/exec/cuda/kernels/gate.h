// SPDX-License-Identifier: Apache-2.0

// Gate: elements through an activation, and times a factor each: what stands between a decoder's
// projections.
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"

namespace djinn::cuda {

inline constexpr int32_t kGateThreads = 256;

// y[i] = activation(x[i]) * factor[i], rounded once. All have one element type and are dense; y may
// be x or the factor.
struct Gate {
  const void* x = nullptr;
  const void* factor = nullptr;  // or none: 1
  void* y = nullptr;
  int64_t count = 0;
  Activation activation = Activation::kNone;
};

}  // namespace djinn::cuda
