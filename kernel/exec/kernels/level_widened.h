// SPDX-License-Identifier: Apache-2.0

// What AVX-512 has without dot products of bf16, and all that templates make of it; included by
// files that are compiled for it.
#pragma once

#include "kernel/exec/kernels/level_avx512.h"

namespace djinn::kernels {
namespace {

template <>
struct Dot<BFloat16> : WidenedDot<BFloat16>, BFloat16Elements {
  static Level::Vector to_vector(const BFloat16* from) { return widened_bfloat16(from); }
};

struct Int8Dots : Int8Pairs {
  static Values load_weights(const int8_t* from) { return load_x(from); }
  struct Offsets {};
  static Offsets offsets(const int32_t*) { return {}; }
  // One operand is unsigned, so the sign of weights goes to x. Two products of 127 fit 16 bits.
  static Level::Vector multiply(Values x, Values weights, Offsets, int) {
    const __mmask64 negative = _mm512_movepi8_mask(weights);
    const __m512i signed_x = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
    const __m512i most = _mm512_abs_epi8(weights);
#ifdef __AVX512VNNI__
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), most, signed_x));
#else
    const __m512i pairs = _mm512_maddubs_epi16(most, signed_x);
    return _mm512_cvtepi32_ps(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
  }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/attend_tokens_template.h"
#include "kernel/exec/kernels/linear_template.h"
#include "kernel/exec/kernels/rows_template.h"
