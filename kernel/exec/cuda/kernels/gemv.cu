// SPDX-License-Identifier: Apache-2.0

// The kernels of a Gemv (gemv.h): djinn_gemv_ELEMENT_ROWS, for one, two, four and eight rows; a
// call of another number of rows takes the next larger one, which computes the last row again.
//
// A warp takes two outputs at a time, and of their weights as many vectors at once as keep the
// memory busy: it loads what it multiplies next while other warps multiply. Weights are read by
// 16 bytes a lane, 512 side by side, past the caches, for nobody reads them twice; the rows come
// from the L1. The first weights are under way before the kernel waits for the one in front of it.
#include "kernel/exec/cuda/kernels/device.cuh"
#include "kernel/exec/cuda/kernels/gemv.h"

namespace djinn::cuda {
namespace {

// Outputs that one warp computes: side by side of one weight, or one of each of two.
struct Group {
  int weight = 0;
  int64_t output = 0;
};

__device__ inline int64_t groups_of(const Gemv& call) {
  if (call.gated) return call.weights[0].outputs;
  int64_t groups = 0;
#pragma unroll
  for (int i = 0; i < kGemvWeights; ++i) {
    if (i < call.count) groups += (call.weights[i].outputs + kGemvOutputs - 1) / kGemvOutputs;
  }
  return groups;
}

__device__ inline Group group_at(const Gemv& call, int64_t number) {
  if (call.gated) return {0, number};
  int weight = 0;
#pragma unroll
  for (int i = 0; i + 1 < kGemvWeights; ++i) {
    const int64_t groups = (call.weights[i].outputs + kGemvOutputs - 1) / kGemvOutputs;
    if (weight == i && i + 1 < call.count && number >= groups) {
      number -= groups;
      weight = i + 1;
    }
  }
  return {weight, number * kGemvOutputs};
}

// Row r of the group; beyond the last output the last one, whose sum nobody stores.
__device__ inline const uint4* row_of(const Gemv& call, Group group, int r, int64_t vectors) {
  const GemvWeight& weight = call.weights[call.gated ? r : group.weight];
  int64_t output = group.output;
  if (!call.gated && output + r < weight.outputs) output += r;
  return static_cast<const uint4*>(weight.weight) + output * vectors;
}

template <typename T, int kM, int kU>
struct Product {
  uint4 loaded[kGemvOutputs][kU];
  float sums[kGemvOutputs][kM];

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < kGemvOutputs; ++r) {
#pragma unroll
      for (int m = 0; m < kM; ++m) sums[r][m] = 0;
    }
  }

  __device__ void load(const Gemv& call, Group group, int64_t first, int64_t vectors) {
#pragma unroll
    for (int r = 0; r < kGemvOutputs; ++r) {
      const uint4* const row = row_of(call, group, r, vectors);
#pragma unroll
      for (int u = 0; u < kU; ++u) {
        const int64_t at = first + kWarp * u;
        if (at < vectors) loaded[r][u] = __ldcs(row + at);
      }
    }
  }

  __device__ void multiply(const Gemv& call, int64_t first, int64_t vectors) {
#pragma unroll
    for (int u = 0; u < kU; ++u) {
      const int64_t at = first + kWarp * u;
      if (at >= vectors) return;
      float weights[kGemvOutputs][kElementsAtOnce<T>];
#pragma unroll
      for (int r = 0; r < kGemvOutputs; ++r) unpack<T>(loaded[r][u], weights[r]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const int64_t row = kM == 1 || m < call.rows ? m : call.rows - 1;
        const T* const x = static_cast<const T*>(call.x) + row * call.x_stride;
        float values[kElementsAtOnce<T>];
        unpack<T>(reinterpret_cast<const uint4*>(x)[at], values);
#pragma unroll
        for (int r = 0; r < kGemvOutputs; ++r) {
#pragma unroll
          for (int i = 0; i < kElementsAtOnce<T>; ++i) {
            sums[r][m] = fmaf(weights[r][i], values[i], sums[r][m]);
          }
        }
      }
    }
  }

  __device__ static float with_bias(const GemvWeight& weight, int64_t output, float sum) {
    if (weight.bias == nullptr) return sum;
    return sum + as_float(static_cast<const T*>(weight.bias)[output]);
  }

  __device__ static void store(const Gemv& call, const GemvWeight& weight, int64_t row,
                               int64_t output, float value) {
    if (call.residual != nullptr) {
      value += as_float(static_cast<const T*>(call.residual)[row * call.residual_stride + output]);
    }
    const int64_t at = row * weight.y_stride + output;
    if (call.y_is_float32) {
      static_cast<float*>(weight.y)[at] = value;
    } else {
      static_cast<T*>(weight.y)[at] = rounded<T>(value);
    }
  }

  // Each lane has one of the results, and stores it.
  __device__ void finish(const Gemv& call, Group group) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float mine[kGemvOutputs] = {};
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int r = 0; r < kGemvOutputs; ++r) {
        const float sum = warp_sum(sums[r][m]);
        if (lane % kM == m) mine[r] = sum;
      }
    }
    const int row = lane % kM;
    const int r = lane / kM;
    if (row < call.rows && r < kGemvOutputs) {
      if (call.gated) {
        const float gate = with_bias(call.weights[0], group.output, mine[0]);
        const float up = with_bias(call.weights[1], group.output, mine[1]);
        if (r == 0) {
          store(call, call.weights[0], row, group.output, activated(call.activation, gate) * up);
        }
      } else {
        const GemvWeight& weight = call.weights[group.weight];
        const int64_t output = group.output + r;
        if (output < weight.outputs) {
          const float sum = with_bias(weight, output, r == 0 ? mine[0] : mine[1]);
          store(call, weight, row, output, activated(call.activation, sum));
        }
      }
    }
    clear();
  }
};

template <typename T, int kM>
__device__ void gemv(const Gemv& call) {
  constexpr int kU = kM > 4 ? 2 : 4;
  const int64_t lane = threadIdx.x % kWarp;
  const int64_t vectors = call.inputs / kElementsAtOnce<T>;
  const int64_t groups = groups_of(call);
  const int64_t stride = int64_t{gridDim.x} * (blockDim.x / kWarp);
  int64_t number = int64_t{threadIdx.x / kWarp} * gridDim.x + blockIdx.x;
  let_the_next_begin();
  if (number >= groups) return;
  Product<T, kM, kU> product;
  product.clear();
  Group group = group_at(call, number);
  int64_t begin = 0;
  product.load(call, group, lane, vectors);
  wait_for_the_one_before();
  for (;;) {
    product.multiply(call, begin + lane, vectors);
    const Group done = group;
    begin += kWarp * kU;
    const bool ends = begin >= vectors;
    if (ends) {
      begin = 0;
      number += stride;
      if (number < groups) group = group_at(call, number);
    }
    if (number < groups) product.load(call, group, begin + lane, vectors);
    if (ends) product.finish(call, done);
    if (number >= groups) return;
  }
}

}  // namespace

#define DJINN_GEMV(element, T, rows)                                     \
  extern "C" __global__ void __launch_bounds__(kGemvThreads)             \
      djinn_gemv_##element##_##rows(const __grid_constant__ Gemv call) { \
    gemv<T, rows>(call);                                                 \
  }
#define DJINN_GEMV_OF_ROWS(element, T) \
  DJINN_GEMV(element, T, 1)            \
  DJINN_GEMV(element, T, 2)            \
  DJINN_GEMV(element, T, 4)            \
  DJINN_GEMV(element, T, 8)

DJINN_GEMV_OF_ROWS(float32, float)
DJINN_GEMV_OF_ROWS(bfloat16, __nv_bfloat16)
DJINN_GEMV_OF_ROWS(float16, __half)

}  // namespace djinn::cuda
