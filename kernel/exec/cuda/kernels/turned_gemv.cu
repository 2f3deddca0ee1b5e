// SPDX-License-Identifier: Apache-2.0

// The kernels of a TurnedGemv (turned_gemv.h): djinn_turned_gemv_ELEMENT_ROWS, as Gemv's. A thread
// has a vector of outputs, and every so-manieth input; a block has a few vectors of outputs.
#include "kernel/exec/cuda/kernels/device.cuh"
#include "kernel/exec/cuda/kernels/turned_gemv.h"

namespace djinn::cuda {
namespace {

// Sums of threads, [slots, outputs of the block], become outputs of one row.
template <typename T>
__device__ void store_turned(const TurnedGemv& call, int64_t row, int64_t first,
                             const float* sums) {
  constexpr int kOutputs = kTurnedVectors * kElementsAtOnce<T>;
  const int64_t output = first + threadIdx.x;
  if (threadIdx.x >= kOutputs || output >= call.outputs) return;
  float sum = 0;
  for (int slot = 0; slot < kTurnedSlots; ++slot) sum += sums[slot * kOutputs + threadIdx.x];
  if (call.bias != nullptr) sum += as_float(static_cast<const T*>(call.bias)[output]);
  static_cast<T*>(call.y)[row * call.y_stride + output] = rounded<T>(sum);
}

template <typename T, int kM>
__device__ void turned_gemv(const TurnedGemv& call) {
  constexpr int kCount = kElementsAtOnce<T>;
  float* const shared = reinterpret_cast<float*>(dynamic_shared);
  const int vector = static_cast<int>(threadIdx.x) % kTurnedVectors;
  const int slot = static_cast<int>(threadIdx.x) / kTurnedVectors;
  const int64_t first = int64_t{blockIdx.x} * kTurnedVectors * kCount;
  const int64_t output = first + vector * kCount;
  let_the_next_begin();
  wait_for_the_one_before();
  float sums[kM][kCount] = {};
  for (int64_t k = slot; k < call.inputs && output < call.outputs; k += kTurnedSlots) {
    const T* const weights = static_cast<const T*>(call.weight) + k * call.weight_stride + output;
    float values[kCount];
    unpack<T>(__ldcs(reinterpret_cast<const uint4*>(weights)), values);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int64_t row = kM == 1 || m < call.rows ? m : call.rows - 1;
      const float x = as_float(static_cast<const T*>(call.x)[row * call.x_stride + k]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[m][i] = fmaf(values[i], x, sums[m][i]);
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) shared[threadIdx.x * kCount + i] = sums[m][i];
    __syncthreads();
    if (m < call.rows) store_turned<T>(call, m, first, shared);
  }
}

}  // namespace

#define DJINN_TURNED_GEMV(element, T, rows)                                           \
  extern "C" __global__ void __launch_bounds__(kTurnedThreads)                        \
      djinn_turned_gemv_##element##_##rows(const __grid_constant__ TurnedGemv call) { \
    turned_gemv<T, rows>(call);                                                       \
  }
#define DJINN_TURNED_GEMV_OF_ROWS(element, T) \
  DJINN_TURNED_GEMV(element, T, 1)            \
  DJINN_TURNED_GEMV(element, T, 2)            \
  DJINN_TURNED_GEMV(element, T, 4)            \
  DJINN_TURNED_GEMV(element, T, 8)

DJINN_TURNED_GEMV_OF_ROWS(float32, float)
DJINN_TURNED_GEMV_OF_ROWS(bfloat16, __nv_bfloat16)
DJINN_TURNED_GEMV_OF_ROWS(float16, __half)

}  // namespace djinn::cuda
