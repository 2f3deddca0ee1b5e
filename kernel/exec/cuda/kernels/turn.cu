// SPDX-License-Identifier: Apache-2.0

// The kernels of a Turn (turn.h): djinn_turn_ELEMENT, a warp for each vector.
#include "kernel/exec/cuda/kernels/device.cuh"
#include "kernel/exec/cuda/kernels/turn.h"

namespace djinn::cuda {
namespace {

__device__ inline int64_t place_of(const TurnSteps& steps, int64_t row, int64_t head,
                                   int64_t token) {
  return row * steps.row + head * steps.head + token * steps.token;
}

template <typename T>
__device__ void turn(const Turn& call) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t number = int64_t{blockIdx.x} * (kTurnThreads / kWarp) + threadIdx.x / kWarp;
  let_the_next_begin();
  if (number >= call.rows * call.heads * call.tokens) return;
  wait_for_the_one_before();
  const int64_t token = number % call.tokens;
  const int64_t head = number / call.tokens % call.heads;
  const int64_t row = number / call.tokens / call.heads;
  const T* const x = static_cast<const T*>(call.x) + place_of(call.x_steps, row, head, token);
  const T* const cos = static_cast<const T*>(call.cos) + place_of(call.cos_steps, row, head, token);
  const T* const sin = static_cast<const T*>(call.sin) + place_of(call.sin_steps, row, head, token);
  T* const y = static_cast<T*>(call.y) + place_of(call.y_steps, row, head, token);
  const int32_t half = call.width / 2;
  for (int32_t i = lane; i < half; i += kWarp) {
    const int32_t first = call.interleaved ? 2 * i : i;
    const int32_t second = call.interleaved ? 2 * i + 1 : i + half;
    const float a = as_float(x[first]);
    const float b = as_float(x[second]);
    y[first] = rounded<T>(fmaf(a, as_float(cos[first]), -(b * as_float(sin[first]))));
    y[second] = rounded<T>(fmaf(b, as_float(cos[second]), a * as_float(sin[second])));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kTurnThreads)
    djinn_turn_float32(const __grid_constant__ Turn call) {
  turn<float>(call);
}
extern "C" __global__ void __launch_bounds__(kTurnThreads)
    djinn_turn_bfloat16(const __grid_constant__ Turn call) {
  turn<__nv_bfloat16>(call);
}
extern "C" __global__ void __launch_bounds__(kTurnThreads)
    djinn_turn_float16(const __grid_constant__ Turn call) {
  turn<__half>(call);
}

}  // namespace djinn::cuda
