// SPDX-License-Identifier: Apache-2.0

// Row kernels: what a token step computes of each row by itself, in one pass over it: a norm, a
// gate, an activation, a turn by a position. The row contract holds as linear.h says it: each row
// is summed in one fixed order.
#pragma once

#include <stdint.h>

#include "kernel/exec/kernels/element.h"

namespace djinn::kernels {

// y[m, k] = x[m, k] / sqrt(mean over k of x[m, k]^2 + epsilon) * (weight[k] + weight_offset): the
// root mean square norm (Zhang and Sennrich, 2019). Rows are dense; strides are elements. y may be
// x.
struct RmsNorm {
  const void* x = nullptr;  // [rows, width]
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [width], or none: the factor is 1
  float weight_offset = 0;
  float epsilon = 0;
  void* y = nullptr;  // [rows, width]
  int64_t y_stride = 0;
  int64_t width = 0;
};
// Of the rows [begin, end).
using RmsNormKernel = void (*)(const RmsNorm& call, int64_t begin, int64_t end);

// y[m, k] = (x[m, k] - mean) / sqrt(mean over k of (x[m, k] - mean)^2 + epsilon) * weight[k] +
// bias[k]: the layer norm (Ba, Kiros and Hinton, 2016). Rows are dense; strides are elements. y may
// be x.
struct LayerNorm {
  const void* x = nullptr;  // [rows, width]
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [width], or none: ones
  const void* bias = nullptr;    // [width], or none
  float epsilon = 0;
  void* y = nullptr;  // [rows, width]
  int64_t y_stride = 0;
  int64_t width = 0;
};
// Of the rows [begin, end).
using LayerNormKernel = void (*)(const LayerNorm& call, int64_t begin, int64_t end);

//   kSilu       x / (1 + exp(-x))
//   kGelu       x times the normal distribution function of x (Hendrycks and Gimpel, 2016)
//   kGeluTanh   x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), which is near it
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh };

// y[i] = activation(x[i]) * factor[i], or without a factor: the activation alone. y may be x.
struct Gate {
  Activation activation = Activation::kSilu;
  const void* x = nullptr;
  const void* factor = nullptr;  // or none
  void* y = nullptr;
};
// Of the elements [begin, end).
using GateKernel = void (*)(const Gate& call, int64_t begin, int64_t end);

// y = x * cos + turned * sin: rotary position embedding (Su et al., 2021). turned is x's second
// half, negated, before its first; or, interleaved, each second element, negated, before its
// neighbour.
struct Rope {
  const void* x = nullptr;  // [width]
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* y = nullptr;  // not x
  int64_t width = 0;  // even
  bool interleaved = false;
};
using RopeKernel = void (*)(const Rope& row);

struct RowKernels {
  RmsNormKernel rms_norm[kElements];  // by Element
  LayerNormKernel layer_norm[kElements];
  GateKernel gate[kElements];
  RopeKernel rope[kElements];
};

}  // namespace djinn::kernels
