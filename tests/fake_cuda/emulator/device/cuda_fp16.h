// SPDX-License-Identifier: Apache-2.0

// float16 as kernels see it where the host's compiler takes them: NVIDIA's names, our code.
#pragma once

#include "kernel/base/half.h"
#include "tests/fake_cuda/emulator/device/cuda_runtime.h"

struct __half {
  uint16_t bits;
};

inline float __half2float(__half value) {
  return djinn::as_float(djinn::Half{value.bits});
}

// To the nearest, ties to even.
inline __half __float2half_rn(float value) {
  return {std::bit_cast<uint16_t>(static_cast<_Float16>(value))};
}

inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline unsigned short __half_as_ushort(__half value) {
  return value.bits;
}
