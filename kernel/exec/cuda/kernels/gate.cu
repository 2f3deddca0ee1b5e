// SPDX-License-Identifier: Apache-2.0

// The kernels of a Gate (gate.h): djinn_gate_ELEMENT, a thread for each element.
#include "kernel/exec/cuda/kernels/device.cuh"
#include "kernel/exec/cuda/kernels/gate.h"

namespace djinn::cuda {
namespace {

template <typename T>
__device__ void gate(const Gate& call) {
  const int64_t i = int64_t{blockIdx.x} * kGateThreads + threadIdx.x;
  let_the_next_begin();
  if (i >= call.count) return;
  wait_for_the_one_before();
  float value = activated(call.activation, as_float(static_cast<const T*>(call.x)[i]));
  if (call.factor != nullptr) value *= as_float(static_cast<const T*>(call.factor)[i]);
  static_cast<T*>(call.y)[i] = rounded<T>(value);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kGateThreads)
    djinn_gate_float32(const __grid_constant__ Gate call) {
  gate<float>(call);
}
extern "C" __global__ void __launch_bounds__(kGateThreads)
    djinn_gate_bfloat16(const __grid_constant__ Gate call) {
  gate<__nv_bfloat16>(call);
}
extern "C" __global__ void __launch_bounds__(kGateThreads)
    djinn_gate_float16(const __grid_constant__ Gate call) {
  gate<__half>(call);
}

}  // namespace djinn::cuda
