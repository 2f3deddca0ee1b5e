// SPDX-License-Identifier: Apache-2.0

// Norm: rows, each by itself, made of one size: the root mean square norm (Zhang and Sennrich,
// 2019) and, centred, the layer norm (Ba, Kiros and Hinton, 2016).
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"

namespace djinn::cuda {

inline constexpr int32_t kNormThreads = 256;
inline constexpr int32_t kNormSharedBytes = 2 * (kNormThreads / kWarp) * 4;  // two sums of warps

// y[m, k] = (x[m, k] - mean) / sqrt(mean over k of (x[m, k] - mean)^2 + epsilon)
//           * (weight[k] + weight_offset) + bias[k]
//
// where mean is that of the row if it is centred, and 0 if not. All have one element type, and
// begin at multiples of 16 bytes; strides are elements. y may be x.
//
// Of a sum over a row, thread t of kNormThreads adds the elements of the vectors t, t +
// kNormThreads, and so on; lanes add theirs in a butterfly, and warps theirs one after the other.
struct Norm {
  const void* x = nullptr;       // [rows, width]
  void* y = nullptr;             // [rows, width]
  const void* weight = nullptr;  // [width], or none: the factor is 1
  const void* bias = nullptr;    // [width], or none
  int64_t x_stride = 0;          // a multiple of 16 bytes
  int64_t y_stride = 0;          // likewise
  int64_t width = 0;             // likewise
  int64_t rows = 0;
  float epsilon = 0;
  float weight_offset = 0;
  bool centred = false;
};

}  // namespace djinn::cuda
