// SPDX-License-Identifier: Apache-2.0

// What the kernels share: elements and vectors of them, sums of a warp, and how a kernel meets the
// one before it on its stream.
//
// Kernels that are launched for programmatic dependent launch may begin before the one in front of
// them has ended. invariant: what a kernel reads before wait_for_the_one_before(), no kernel of
// ours writes (weights); on devices older than sm_90 both calls are nothing, and so they are where
// the launch does not ask for it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"

// As much as the launch says.
extern __shared__ uint4 dynamic_shared[];

namespace djinn::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

template <typename T>
inline constexpr int kElementsAtOnce = kVectorBytes / static_cast<int>(sizeof(T));

__device__ inline void let_the_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_the_one_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline float as_float(float value) {
  return value;
}
__device__ inline float as_float(__half value) {
  return __half2float(value);
}
__device__ inline float as_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

// To the nearest, ties to even.
template <typename T>
__device__ T rounded(float value);
template <>
__device__ inline float rounded<float>(float value) {
  return value;
}
template <>
__device__ inline __half rounded<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 rounded<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// The 16-bit elements of a word; its lower half lies first in memory.
template <typename T>
__device__ float low(unsigned word);
template <typename T>
__device__ float high(unsigned word);
template <>
__device__ inline float low<__nv_bfloat16>(unsigned word) {
  return __uint_as_float(word << 16);
}
template <>
__device__ inline float high<__nv_bfloat16>(unsigned word) {
  return __uint_as_float(word & 0xffff0000u);
}
template <>
__device__ inline float low<__half>(unsigned word) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word & 0xffffu)));
}
template <>
__device__ inline float high<__half>(unsigned word) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}

template <typename T>
__device__ void unpack(uint4 vector, float (&values)[kElementsAtOnce<T>]) {
  const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = __uint_as_float(words[i]);
    } else {
      values[2 * i] = low<T>(words[i]);
      values[2 * i + 1] = high<T>(words[i]);
    }
  }
}

__device__ inline unsigned bits_of(__half value) {
  return __half_as_ushort(value);
}
__device__ inline unsigned bits_of(__nv_bfloat16 value) {
  return __bfloat16_as_ushort(value);
}

template <typename T>
__device__ uint4 pack(const float (&values)[kElementsAtOnce<T>]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(values[i]);
    } else {
      words[i] = bits_of(rounded<T>(values[2 * i])) | bits_of(rounded<T>(values[2 * i + 1])) << 16;
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The same bits in each lane: what two lanes add does not depend on which of them adds.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}

__device__ inline float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return x / (1 + expf(-x));
    case Activation::kGelu:
      return 0.5f * x * (1 + erff(x * 0.707106781f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1 + tanhf(0.797884561f * (x + 0.044715f * x * x * x)));
    case Activation::kRelu:
      return x > 0 || x != x ? x : 0;
  }
  return x;
}

}  // namespace djinn::cuda
