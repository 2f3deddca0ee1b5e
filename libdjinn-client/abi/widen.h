// SPDX-License-Identifier: Apache-2.0

// Widen: float16, bfloat16 and float32 elements as floats. Exact: each is one.
#pragma once

#include <bit>
#include <cstring>
#include <span>

#include "kernel/base/dtype.h"

namespace djinn {

inline float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  }
  const float small = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -small : small;
}

inline float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// out: room for every element of bytes.
inline void widen(DType dtype, std::span<const std::byte> bytes, float* out) {
  if (bytes.empty()) return;
  if (dtype == DType::kFloat32) {
    std::memcpy(out, bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < bytes.size() / sizeof(uint16_t); ++i) {
    uint16_t narrow = 0;
    std::memcpy(&narrow, bytes.data() + i * sizeof narrow, sizeof narrow);
    out[i] = dtype == DType::kBFloat16 ? bfloat16_to_float(narrow) : half_to_float(narrow);
  }
}

}  // namespace djinn
