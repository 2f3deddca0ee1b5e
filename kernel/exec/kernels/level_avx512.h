// SPDX-License-Identifier: Apache-2.0

// What the two levels of AVX-512 share; included by files that are compiled for one of them.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/base/int8_rows.h"
#include "kernel/exec/kernels/unroll.h"

namespace djinn::kernels {
namespace {

// With tiles come processors with two loads and two products a cycle, which three rows of weights
// keep busier than two (Sapphire Rapids: 1.05 to 1.1 of their rate). And so 16 rows go in one
// block, for which no second row of weights has a place.
#ifdef __AMX_TILE__
constexpr int kWeightsOfLevel = 3, kOneBlockOfLevel = 16;
#else
constexpr int kWeightsOfLevel = 2, kOneBlockOfLevel = 8;
#endif

struct Level {
  using Vector = __m512;
  typedef int32_t Ints __attribute__((vector_size(64)));
  static constexpr int kLanes = 16;
  static constexpr int kRegisters = 32;
  static constexpr int kWeightsMax = kWeightsOfLevel;
  static constexpr int kRowsInOneBlock = kOneBlockOfLevel;
  static constexpr int kSumSteps = 24;
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector broadcast(float value) { return _mm512_set1_ps(value); }
  static Vector load_floats(const float* from) { return _mm512_loadu_ps(from); }
  static void store_floats(float* to, Vector vector) { _mm512_storeu_ps(to, vector); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static float sum(Vector v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  template <typename V>
  static void hold(V& vector) {
    asm("" : "+v"(vector));
  }
  static Vector sums(const Vector* v) {
    Vector four[4];
    DJINN_UNROLL
    for (int i = 0; i < 4; ++i) {
      // The vectors whose sums become the lanes i, 4 + i, 8 + i and 12 + i.
      const Vector a = in_halves(v[i], v[4 + i]), b = in_halves(v[8 + i], v[12 + i]);
      four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    const Vector a = in_pairs(four[0], four[1]), b = in_pairs(four[2], four[3]);
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  }
  // The eight lanes that a vector's halves add up to, then those of the other.
  static Vector in_halves(Vector a, Vector b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  // Of four lanes each, the two that their halves add up to, then those of the other's.
  static Vector in_pairs(Vector a, Vector b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

inline __m256i load_halves(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline Level::Vector widened_bfloat16(const BFloat16* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(from)), 16));
}

template <>
struct Dot<Float16> : WidenedDot<Float16> {
  static Level::Vector to_vector(const Float16* from) { return _mm512_cvtph_ps(load_halves(from)); }
  static void from_vector(Float16* to, Level::Vector value) {
    const __m256i halves = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
  static float widen(Float16 value) { return _cvtsh_ss(value.bits); }
  static Float16 round(float value) {
    return {static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))};
  }
};

// A step is two blocks, and a vector of parts has eight of each.
struct Int8Dots {
  static constexpr int kBlocks = 2;
  using Values = __m512i;
  static Values load(const int8_t* from) { return _mm512_loadu_si512(from); }
  using Scales = __m512;
  static Scales scales(const BFloat16* weights, const float* x) {
    return _mm512_mul_ps(widened_bfloat16(weights), _mm512_loadu_ps(x));
  }
  // One operand is unsigned, so the sign of weights goes to x. (To add 128 to weights, and to take
  // it off a block's sum, leaves parts that are larger than what they add up to, and so are their
  // rounding errors.) Two products of 127 fit 16 bits.
  static Level::Vector multiply(Values x, Values weights) {
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
  static Level::Vector scale(Scales scales, int step) {
    return _mm512_permutexvar_ps(blocks_of(step), scales);
  }
  static Level::Vector widen(const int8_t* from) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen));
  }
  // Which block each lane is of.
  static __m512i blocks_of(int step) {
    const __m512i first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_add_epi32(first, _mm512_set1_epi32(2 * step));
  }
};

}  // namespace
}  // namespace djinn::kernels
