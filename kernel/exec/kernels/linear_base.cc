// SPDX-License-Identifier: Apache-2.0

#include <stddef.h>

#include "kernel/exec/kernels/elements.h"

namespace djinn::kernels {
namespace {

struct Level {
  typedef float Vector __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kRegisters = 16;
  static Vector zero() { return Vector{}; }
  static Vector broadcast(float value) { return Vector{value, value, value, value}; }
  static Vector load_floats(const float* from) {
    Vector vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
  }
  static void store_floats(float* to, Vector vector) { memcpy(to, &vector, sizeof vector); }
  static Vector add(Vector a, Vector b) { return a + b; }
  static Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
  static float sum(Vector v) { return (v[0] + v[2]) + (v[1] + v[3]); }
};

inline float widen_float16(Float16 value) {
  _Float16 half;
  memcpy(&half, &value, sizeof half);
  return static_cast<float>(half);
}

// What all element types share: a step multiplies a vector of floats.
template <typename T>
struct Dot;

template <typename T, float (*kWiden)(T)>
struct WidenedDot {
  using Operand = Level::Vector;
  static constexpr int kStep = Level::kLanes;
  static Operand to_vector(const T* from) {
    return Operand{kWiden(from[0]), kWiden(from[1]), kWiden(from[2]), kWiden(from[3])};
  }
  static Operand load(const T* from) { return to_vector(from); }
  static Level::Vector step(Level::Vector sum, Operand a, Operand b) {
    return Level::fma(a, b, sum);
  }
  static float widen(T value) { return kWiden(value); }
};

inline float same(float value) {
  return value;
}

template <>
struct Dot<float> : WidenedDot<float, &same> {
  static float round(float value) { return value; }
};
template <>
struct Dot<BFloat16> : WidenedDot<BFloat16, &widen_bfloat16> {
  static BFloat16 round(float value) { return to_bfloat16(value); }
};
template <>
struct Dot<Float16> : WidenedDot<Float16, &widen_float16> {
  static Float16 round(float value) {
    const auto half = static_cast<_Float16>(value);
    Float16 bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
  }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/linear_template.h"

namespace djinn::kernels {
extern const LinearKernels kLinearBase = kOfThisLevel;
}  // namespace djinn::kernels
