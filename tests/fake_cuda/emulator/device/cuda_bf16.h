// SPDX-License-Identifier: Apache-2.0

// bfloat16 as kernels see it where the host's compiler takes them: NVIDIA's names, our code.
#pragma once

#include "kernel/base/half.h"
#include "tests/fake_cuda/emulator/device/cuda_runtime.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  return djinn::as_float(djinn::BFloat16{value.bits});
}

// To the nearest, ties to even; NaN stays one.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) {
  return value.bits;
}
