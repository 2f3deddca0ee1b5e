// SPDX-License-Identifier: Apache-2.0

// The kernels of a Norm (norm.h): djinn_norm_ELEMENT, a block for each row. The row is read by 16
// bytes a thread, two or three times, of which the later ones meet the L1.
#include "kernel/exec/cuda/kernels/device.cuh"
#include "kernel/exec/cuda/kernels/norm.h"

namespace djinn::cuda {
namespace {

constexpr int kNormWarps = kNormThreads / kWarp;

// In each thread of the block. `sums` has kNormWarps floats, which nobody else uses.
__device__ inline float block_sum(float value, float* sums) {
  const float of_warp = warp_sum(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kNormWarps; ++warp) sum += sums[warp];
  return sum;
}

template <typename T>
__device__ float sum_of_row(const uint4* x, int64_t vectors, float* sums) {
  float sum = 0;
  for (int64_t v = threadIdx.x; v < vectors; v += kNormThreads) {
    float values[kElementsAtOnce<T>];
    unpack<T>(x[v], values);
#pragma unroll
    for (int i = 0; i < kElementsAtOnce<T>; ++i) sum += values[i];
  }
  return block_sum(sum, sums);
}

template <typename T>
__device__ float sum_of_squares(const uint4* x, int64_t vectors, float mean, float* sums) {
  float sum = 0;
  for (int64_t v = threadIdx.x; v < vectors; v += kNormThreads) {
    float values[kElementsAtOnce<T>];
    unpack<T>(x[v], values);
#pragma unroll
    for (int i = 0; i < kElementsAtOnce<T>; ++i) {
      const float centred = values[i] - mean;
      sum = fmaf(centred, centred, sum);
    }
  }
  return block_sum(sum, sums);
}

template <typename T>
__device__ void norm(const Norm& call) {
  constexpr int kCount = kElementsAtOnce<T>;
  float* const sums = reinterpret_cast<float*>(dynamic_shared);
  const int64_t vectors = call.width / kCount;
  const int64_t row = blockIdx.x;
  const T* const from = static_cast<const T*>(call.x) + row * call.x_stride;
  T* const to = static_cast<T*>(call.y) + row * call.y_stride;
  const uint4* const x = reinterpret_cast<const uint4*>(from);
  uint4* const y = reinterpret_cast<uint4*>(to);
  const float width = static_cast<float>(call.width);
  let_the_next_begin();
  wait_for_the_one_before();
  const float mean = call.centred ? sum_of_row<T>(x, vectors, sums) / width : 0;
  const float squares = sum_of_squares<T>(x, vectors, mean, sums + kNormWarps);
  const float scale = rsqrtf(squares / width + call.epsilon);
  for (int64_t v = threadIdx.x; v < vectors; v += kNormThreads) {
    float values[kCount];
    unpack<T>(x[v], values);
    float factors[kCount];
    if (call.weight != nullptr) {
      unpack<T>(static_cast<const uint4*>(call.weight)[v], factors);
    }
    float biases[kCount] = {};
    if (call.bias != nullptr) unpack<T>(static_cast<const uint4*>(call.bias)[v], biases);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float factor = call.weight == nullptr ? 1 : factors[i] + call.weight_offset;
      values[i] = fmaf((values[i] - mean) * scale, factor, biases[i]);
    }
    y[v] = pack<T>(values);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kNormThreads)
    djinn_norm_float32(const __grid_constant__ Norm call) {
  norm<float>(call);
}
extern "C" __global__ void __launch_bounds__(kNormThreads)
    djinn_norm_bfloat16(const __grid_constant__ Norm call) {
  norm<__nv_bfloat16>(call);
}
extern "C" __global__ void __launch_bounds__(kNormThreads)
    djinn_norm_float16(const __grid_constant__ Norm call) {
  norm<__half>(call);
}

}  // namespace djinn::cuda
