// SPDX-License-Identifier: Apache-2.0

// The 16-bit floating types, which C++20 does not have: their bits, as they lie in memory, and the
// float of the same value. Widening is exact.
#pragma once

#include <bit>
#include <cstdint>

namespace djinn {

struct Half {  // IEEE 754 binary16
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// The bits of a float of the value that a magnitude (bits without the sign) has in a format of so
// many bits of exponent and mantissa. Precondition: neither infinite nor NaN.
template <int kExponentBits, int kMantissaBits>
uint32_t widened_magnitude(uint32_t magnitude) {
  constexpr int kFloatMantissaBits = 23;
  constexpr int kFloatBias = 127;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr float kScale =
      std::bit_cast<float>(uint32_t{2 * kFloatBias - kBias} << kFloatMantissaBits);
  const float scaled =
      std::bit_cast<float>(magnitude << (kFloatMantissaBits - kMantissaBits)) * kScale;
  return std::bit_cast<uint32_t>(scaled);
}

// NaNs become quiet and keep their payload.
inline float as_float(Half value) {
  constexpr uint32_t kFloatInfinity = 0x7f80'0000u;
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude < 0x7c00u) return std::bit_cast<float>(sign | widened_magnitude<5, 10>(magnitude));
  const uint32_t quiet = magnitude > 0x7c00u ? 0x0040'0000u : 0;
  return std::bit_cast<float>(sign | kFloatInfinity | (magnitude & 0x3ffu) << 13 | quiet);
}

inline float as_float(BFloat16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}

}  // namespace djinn
