// SPDX-License-Identifier: Apache-2.0

// The kernels of a RopeAppend (rope.h): djinn_rope_append_ELEMENT, a warp for each head of queries,
// keys and values, in this order, of each row.
#include "kernel/exec/cuda/kernels/device.cuh"
#include "kernel/exec/cuda/kernels/rope.h"

namespace djinn::cuda {
namespace {

// One head: where it comes from and goes to, and whether it is turned.
template <typename T>
struct Head {
  const T* from;
  T* to;
  bool turns;
};

template <typename T>
__device__ Head<T> head_at(const RopeAppend& call, int32_t number, int64_t row, int64_t length) {
  const auto at = [&](const void* all, int64_t stride, int32_t head) {
    return static_cast<const T*>(all) + row * stride + int64_t{head} * call.width;
  };
  const bool turns = call.cos != nullptr;
  if (number < call.heads) {
    T* const out = static_cast<T*>(call.query_out) + row * call.query_out_stride;
    return {at(call.query, call.query_stride, number), out + int64_t{number} * call.width, turns};
  }
  const CacheRow& cache = call.cache[row];
  const bool is_key = number < call.heads + call.cache_heads;
  const int32_t head = number - call.heads - (is_key ? 0 : call.cache_heads);
  const int64_t place = head * cache.head_stride + length * call.width;
  if (is_key) {
    return {at(call.key, call.key_stride, head), static_cast<T*>(cache.key) + place, turns};
  }
  return {at(call.value, call.value_stride, head), static_cast<T*>(cache.value) + place, false};
}

template <typename T>
__device__ void rope_append(const RopeAppend& call) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int32_t number =
      static_cast<int32_t>(blockIdx.x * (kRopeThreads / kWarp) + threadIdx.x / kWarp);
  const int64_t row = blockIdx.y;
  let_the_next_begin();
  if (number >= call.heads + 2 * call.cache_heads) return;
  wait_for_the_one_before();
  const int64_t length = call.lengths[row];
  const int64_t position = call.positions == nullptr ? length : call.positions[row];
  const Head<T> head = head_at<T>(call, number, row, length);
  const int32_t turned = head.turns ? call.rotary : 0;
  const int32_t half = turned / 2;
  for (int32_t i = lane; i < half; i += kWarp) {
    const int32_t first = call.interleaved ? 2 * i : i;
    const int32_t second = call.interleaved ? 2 * i + 1 : i + half;
    const float cos = call.cos[position * half + i];
    const float sin = call.sin[position * half + i];
    const float a = as_float(head.from[first]);
    const float b = as_float(head.from[second]);
    head.to[first] = rounded<T>(fmaf(a, cos, -(b * sin)));
    head.to[second] = rounded<T>(fmaf(b, cos, a * sin));
  }
  for (int32_t i = turned + lane; i < call.width; i += kWarp) head.to[i] = head.from[i];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kRopeThreads)
    djinn_rope_append_float32(const __grid_constant__ RopeAppend call) {
  rope_append<float>(call);
}
extern "C" __global__ void __launch_bounds__(kRopeThreads)
    djinn_rope_append_bfloat16(const __grid_constant__ RopeAppend call) {
  rope_append<__nv_bfloat16>(call);
}
extern "C" __global__ void __launch_bounds__(kRopeThreads)
    djinn_rope_append_float16(const __grid_constant__ RopeAppend call) {
  rope_append<__half>(call);
}

}  // namespace djinn::cuda
