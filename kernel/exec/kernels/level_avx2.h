// SPDX-License-Identifier: Apache-2.0

// What AVX2 has, and all that templates make of it; included by files that are compiled for it.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/base/int8_rows.h"
#include "kernel/exec/kernels/unroll.h"

namespace djinn::kernels {
namespace {

struct Level {
  using Vector = __m256;
  typedef int32_t Ints __attribute__((vector_size(32)));
  static constexpr int kLanes = 8;
  static constexpr int kRegisters = 16;
  static constexpr int kWeightsMax = 2;
  static constexpr int kRowsInOneBlock = 8;
  static constexpr int kSumSteps = 32;
  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector broadcast(float value) { return _mm256_set1_ps(value); }
  static Vector load_floats(const float* from) { return _mm256_loadu_ps(from); }
  static void store_floats(float* to, Vector vector) { _mm256_storeu_ps(to, vector); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(Vector v) {
    const __m128 halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
  }
  template <typename V>
  static void hold(V& vector) {
    asm("" : "+x"(vector));
  }
  static Vector sums(const Vector* v) {
    Vector four[4];
    DJINN_UNROLL
    for (int i = 0; i < 4; ++i) {
      four[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[i], v[4 + i], 0x20),
                              _mm256_permute2f128_ps(v[i], v[4 + i], 0x31));
    }
    const Vector a = in_pairs(four[0], four[1]), b = in_pairs(four[2], four[3]);
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
  }
  // Of four lanes each, the two that their halves add up to, then those of the other's.
  static Vector in_pairs(Vector a, Vector b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

inline __m128i load_halves(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

template <>
struct Dot<BFloat16> : WidenedDot<BFloat16>, BFloat16Elements {
  static Level::Vector to_vector(const BFloat16* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(from)), 16));
  }
};
template <>
struct Dot<Float16> : WidenedDot<Float16> {
  static Level::Vector to_vector(const Float16* from) { return _mm256_cvtph_ps(load_halves(from)); }
  static void from_vector(Float16* to, Level::Vector value) {
    const __m128i halves = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }
  static float widen(Float16 value) { return _cvtsh_ss(value.bits); }
  static Float16 round(float value) {
    return {static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))};
  }
};

struct Int8Dots {
  static constexpr int kBlocks = 1;
  using Values = __m256i;
  static Values load(const int8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  struct Scales {
    float of[kInt8ScalesAtOnce];
  };
  static Scales scales(const BFloat16* weights, const float* x) {
    Scales products;
    for (int i = 0; i < kInt8ScalesAtOnce; i += Level::kLanes) {
      const __m256 of_weights = Dot<BFloat16>::to_vector(weights + i);
      _mm256_storeu_ps(products.of + i, _mm256_mul_ps(of_weights, _mm256_loadu_ps(x + i)));
    }
    return products;
  }
  // One operand is unsigned, so the sign of weights goes to x. Two products of 127 fit 16 bits.
  static Level::Vector multiply(Values x, Values weights) {
    const __m256i signed_x = _mm256_sign_epi8(x, weights), most = _mm256_abs_epi8(weights);
#ifdef __AVXVNNI__
    return _mm256_cvtepi32_ps(_mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), most, signed_x));
#else
    const __m256i pairs = _mm256_maddubs_epi16(most, signed_x);
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
  }
  static Level::Vector scale(const Scales& scales, int step) {
    return _mm256_broadcast_ss(scales.of + step);
  }
  static Level::Vector widen(const int8_t* from) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
  }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/attend_tokens_template.h"
#include "kernel/exec/kernels/linear_template.h"
#include "kernel/exec/kernels/rows_template.h"
