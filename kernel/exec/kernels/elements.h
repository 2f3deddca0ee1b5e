// SPDX-License-Identifier: Apache-2.0

// Elements of 16 bits as a level's files see them (linear_template.h says why there is nothing of
// the standard library in here).
#pragma once

#include <stdint.h>
#include <string.h>

namespace djinn::kernels {
namespace {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float widen_bfloat16(BFloat16 value) {
  return float_of_bits(static_cast<uint32_t>(value.bits) << 16);
}

// To nearest, ties to even; a NaN stays one.
inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if (value != value) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

}  // namespace
}  // namespace djinn::kernels
