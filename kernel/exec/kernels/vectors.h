// SPDX-License-Identifier: Apache-2.0

// What all kernels of a level are made of, after the level's file has described its vectors and
// before it says how elements become such. A file that is compiled for a level includes C headers,
// intrinsics, this, and the templates alone: the linker may take one file's copy of an inline
// function of the standard library for all others, and machines without the level would meet its
// instructions.
//
// A level is a struct:
//   Vector, Ints, kLanes  floats and int32_t, vectors of the compiler's
//   kRegisters            how many vectors the machine holds
//   kWeightsMax           how many rows of weights a block of rows takes at once
//   kRowsInOneBlock       up to so many rows of float32 are one block, and weights are read once
//   kSumSteps             so many steps of float32 make one sum, and longer rows sums of these
//   zero, broadcast, load_floats, store_floats, add, fma, sum
//                         sum: of the lanes, in a fixed order
//   hold(V&)              of a vector that was loaded: it stays in a register, and is not loaded
//                         for each use
//   sums(const Vector*)   of kLanes vectors, the sum of each in its lane, with the bits of `sum`
// and for each element type T a struct Dot<T>:
//   Operand, kStep        elements that one step multiplies
//   load(const T*), step(sum, a, b)
//   to_vector(const T*), from_vector(T*, Vector) of kLanes; widen(T), round(float)
// and a struct Int8Dots:
//   kBlocks               of int8, that one step multiplies: 1 or 2
//   Values, load(const int8_t*)
//   Scales, scales(const BFloat16* of weights, const float* of x)
//                         their products, of kInt8ScalesAtOnce blocks
//   multiply(x, weights)  a Vector of parts of the blocks' sums, which are exact, each the sum of
//                         its own products
//   scale(const Scales&, step)
//                         the product of scales for each part
//   widen(const int8_t*)  a Vector of kLanes
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernel/exec/kernels/elements.h"
#include "kernel/exec/kernels/unroll.h"

namespace djinn::kernels {
namespace {

using Vector = Level::Vector;
using Ints = Level::Ints;
constexpr int kLanes = Level::kLanes;

constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

inline Ints as_ints(Vector value) {
  Ints bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline Vector as_floats(Ints bits) {
  Vector value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// --- element types

template <typename T>
struct Dot;

// A step multiplies a vector of floats.
template <typename T>
struct WidenedDot {
  using Operand = Vector;
  static constexpr int kStep = kLanes;
  static Operand load(const T* from) { return Dot<T>::to_vector(from); }
  static Vector step(Vector sum, Operand a, Operand b) { return Level::fma(a, b, sum); }
};

// To nearest, ties to even; a NaN stays one.
struct BFloat16Elements {
  static float widen(BFloat16 value) { return widen_bfloat16(value); }
  static BFloat16 round(float value) { return to_bfloat16(value); }
  static void from_vector(BFloat16* to, Vector value) {
    typedef uint16_t Halves __attribute__((vector_size(sizeof(Vector) / 2)));
    const Ints bits = as_ints(value);
    const Ints nearest = bits + 0x7fff + ((bits >> 16) & 1);
    const Ints rounded = value == value ? nearest : bits | 0x400000;
    const Halves halves = __builtin_convertvector(rounded >> 16, Halves);
    memcpy(to, &halves, sizeof halves);
  }
};

template <>
struct Dot<float> : WidenedDot<float> {
  static Vector to_vector(const float* from) { return Level::load_floats(from); }
  static void from_vector(float* to, Vector value) { Level::store_floats(to, value); }
  static float widen(float value) { return value; }
  static float round(float value) { return value; }
};

// --- vectors of which a part is wanted

// The elements that are left over, and zeros behind them.
template <typename T, int kCount>
inline void copy_tail(T (&to)[kCount], const T* from, int64_t count) {
  memset(to, 0, sizeof to);
  memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

template <typename T>
inline Vector load_part(const T* from, int64_t count) {
  if (count >= kLanes) return Dot<T>::to_vector(from);
  T tail[kLanes];
  copy_tail(tail, from, count);
  return Dot<T>::to_vector(tail);
}

template <typename T>
inline void store_part(T* to, Vector value, int64_t count) {
  if (count >= kLanes) return Dot<T>::from_vector(to, value);
  T tail[kLanes];
  Dot<T>::from_vector(tail, value);
  memcpy(to, tail, static_cast<size_t>(count) * sizeof(T));
}

// --- functions

// The sum over i of coefficient[i] * x^i.
template <int kCount>
inline Vector polynomial(const float (&coefficient)[kCount], Vector x) {
  Vector sum = Level::broadcast(coefficient[kCount - 1]);
  DJINN_UNROLL
  for (int i = kCount - 2; i >= 0; --i) sum = sum * x + coefficient[i];
  return sum;
}

// e^x, to about one unit in the last place: 2^n * e^r with r within half of ln 2, by its Taylor
// series to the seventh power, whose rest is below 2^-27. 2^n is two factors, so that results
// beyond float become infinite, and those below it zero.
inline Vector exp_of(Vector x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e4p-1f;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kRounder = 0x1.8p+23f;  // adding it leaves an integer in the low bits
  constexpr float kBound = 110.0f;
  const Vector most = Level::broadcast(kBound), least = Level::broadcast(-kBound);
  x = x > most ? most : x;
  x = x < least ? least : x;
  const Vector shifted = x * kLog2E + kRounder;
  const Ints n = as_ints(shifted) - static_cast<int32_t>(0x4b400000);
  const Vector whole = shifted - kRounder;
  const Vector r = (x - whole * kLn2High) - whole * kLn2Low;
  constexpr float kTaylor[] = {1.0f,      1.0f,       0.5f,       1.0f / 6,
                               1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040};
  const Vector sum = polynomial(kTaylor, r);
  const Ints half = n >> 1;
  return sum * as_floats((half + 127) << 23) * as_floats((n - half + 127) << 23);
}

}  // namespace
}  // namespace djinn::kernels
