// SPDX-License-Identifier: Apache-2.0

// What the levels with dot products of bf16 and int8 share: vectors, and all that templates make of
// them. Included by files that are compiled for one of them.
#pragma once

#include "kernel/exec/kernels/level_avx512.h"

namespace djinn::kernels {
namespace {

// A step multiplies pairs and adds them to 16 sums.
template <>
struct Dot<BFloat16> : BFloat16Elements {
  using Operand = __m512bh;
  static constexpr int kStep = 32;
  static Operand load(const BFloat16* from) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
  }
  static Level::Vector step(Level::Vector sum, Operand a, Operand b) {
    return _mm512_dpbf16_ps(sum, a, b);
  }
  static Level::Vector to_vector(const BFloat16* from) { return widened_bfloat16(from); }
};

// One operand is unsigned: weights, to which 128 is added. What that adds to a block's sum, 128
// times the sum of x, is taken off before, an eighth from each of its eight parts.
struct Int8Dots : Int8Pairs {
  static Values load_weights(const int8_t* from) {
    return _mm512_xor_si512(load_x(from), _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  using Offsets = __m512i;
  static Offsets offsets(const int32_t* from) { return _mm512_loadu_si512(from); }
  static Level::Vector multiply(Values x, Values weights, Offsets offsets, int step) {
    const __m512i before = _mm512_permutexvar_epi32(blocks_of(step), offsets);
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(before, weights, x));
  }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/attend_tokens_template.h"
#include "kernel/exec/kernels/linear_template.h"
#include "kernel/exec/kernels/rows_template.h"
