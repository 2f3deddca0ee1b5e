// SPDX-License-Identifier: Apache-2.0

// Gemv: one to eight rows, those of a token step, times up to three matrices of weights: a model's
// query, key and value, its gate and up projection, its output and down projection, its head. The
// rows share one reading of the weights, which is what such a step costs.
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"

namespace djinn::cuda {

inline constexpr int32_t kGemvRows = 8;
inline constexpr int32_t kGemvWeights = 3;
inline constexpr int32_t kGemvThreads = 256;
inline constexpr int32_t kGemvOutputs = 2;  // that a warp computes at once

// One matrix. Elements of a row are dense; its rows follow each other.
struct GemvWeight {
  const void* weight = nullptr;  // [outputs, inputs], at a multiple of 16 bytes
  const void* bias = nullptr;    // [outputs], or none
  void* y = nullptr;             // [rows, outputs]
  int64_t y_stride = 0;          // elements between rows
  int64_t outputs = 0;
};

// y[m, n] = activation(sum over k of x[m, k] * weight[n, k] + bias[n]) + residual[m, n]
//
// for each weight; or, gated, of two weights that have as many outputs,
//
// y[m, n] = activation(that of the first) * (that of the second) + residual[m, n]
//
// (Shazeer, 2020), where the first one's y is written. All have one element type, but for y that is
// float32, as logits are. Nothing overlaps, but that y may be the residual.
//
// Of a sum over k, lane l of a warp adds k in [v, v + 1) * 16 bytes, v = l, l + 32, and so on, in
// this order, by fused multiplications; then the lanes add what they have in a butterfly.
struct Gemv {
  GemvWeight weights[kGemvWeights];
  const void* x = nullptr;         // [rows, inputs], at a multiple of 16 bytes
  const void* residual = nullptr;  // [rows, outputs], of one weight; or none
  int64_t x_stride = 0;            // elements between rows, a multiple of 16 bytes
  int64_t residual_stride = 0;
  int64_t inputs = 0;  // a multiple of 16 bytes
  int32_t rows = 0;    // 1 to kGemvRows
  int32_t count = 0;   // of weights
  Activation activation = Activation::kNone;
  bool gated = false;
  bool y_is_float32 = false;
};

}  // namespace djinn::cuda
