// SPDX-License-Identifier: Apache-2.0

// TurnedGemv: as a Gemv, one to eight rows times a matrix whose outputs lie side by side, as GPT-2
// has its weights.
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"
#include "kernel/exec/cuda/kernels/gemv.h"

namespace djinn::cuda {

inline constexpr int32_t kTurnedThreads = 256;
inline constexpr int32_t kTurnedVectors = 8;  // of outputs, side by side, that a block computes
inline constexpr int32_t kTurnedSlots = kTurnedThreads / kTurnedVectors;

// Bytes of shared memory of a block: a float for each thread and element of its vector.
[[nodiscard]] constexpr int32_t turned_shared_bytes(Element element) {
  return kTurnedThreads * (kVectorBytes / bytes_of(element)) * 4;
}

// y[m, n] = sum over k of x[m, k] * weight[k, n] + bias[n]
//
// All have one element type. Of the sum, slot s of kTurnedSlots adds k = s, s + kTurnedSlots, and
// so on, in this order, by fused multiplications; then slots are added in order.
struct TurnedGemv {
  const void* weight = nullptr;  // [inputs, outputs], at a multiple of 16 bytes
  const void* bias = nullptr;    // [outputs], or none
  const void* x = nullptr;       // [rows, inputs]
  void* y = nullptr;             // [rows, outputs]
  int64_t weight_stride = 0;     // elements between inputs, a multiple of 16 bytes
  int64_t x_stride = 0;          // elements between rows
  int64_t y_stride = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;  // a multiple of 16 bytes
  int32_t rows = 0;     // 1 to kGemvRows
};

}  // namespace djinn::cuda
