// SPDX-License-Identifier: Apache-2.0

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernel/base/int8_rows.h"

namespace djinn::kernels {
namespace {

struct Level {
  typedef float Vector __attribute__((vector_size(16)));
  typedef int32_t Ints __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kRegisters = 16;
  static constexpr int kWeightsMax = 2;
  static constexpr int kRowsInOneBlock = 8;
  static constexpr int kSumSteps = 32;
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
  template <typename V>
  static void hold(V&) {}
  static Vector sums(const Vector* v) { return Vector{sum(v[0]), sum(v[1]), sum(v[2]), sum(v[3])}; }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

template <typename T>
Level::Vector widened(const T* from) {
  using D = Dot<T>;
  return Level::Vector{D::widen(from[0]), D::widen(from[1]), D::widen(from[2]), D::widen(from[3])};
}

template <>
struct Dot<BFloat16> : WidenedDot<BFloat16>, BFloat16Elements {
  static Level::Vector to_vector(const BFloat16* from) { return widened(from); }
};
template <>
struct Dot<Float16> : WidenedDot<Float16> {
  static Level::Vector to_vector(const Float16* from) { return widened(from); }
  static void from_vector(Float16* to, Level::Vector value) {
    for (int i = 0; i < Level::kLanes; ++i) to[i] = round(value[i]);
  }
  static float widen(Float16 value) {
    _Float16 half;
    memcpy(&half, &value, sizeof half);
    return static_cast<float>(half);
  }
  static Float16 round(float value) {
    const auto half = static_cast<_Float16>(value);
    Float16 bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
  }
};

struct Int8Dots {
  static constexpr int kBlocks = 1;
  struct Values {
    int8_t of[kInt8Block];
  };
  static Values load(const int8_t* from) {
    Values values;
    memcpy(values.of, from, sizeof values.of);
    return values;
  }
  struct Scales {
    float of[kInt8ScalesAtOnce];
  };
  static Scales scales(const BFloat16* weights, const float* x) {
    Scales products;
    for (int i = 0; i < kInt8ScalesAtOnce; ++i) {
      products.of[i] = widen_bfloat16(weights[i]) * x[i];
    }
    return products;
  }
  static Level::Vector multiply(const Values& x, const Values& weights) {
    Level::Ints sums = {};
    for (int i = 0; i < kInt8Block; ++i) sums[i % Level::kLanes] += x.of[i] * weights.of[i];
    return __builtin_convertvector(sums, Level::Vector);
  }
  static Level::Vector scale(const Scales& scales, int step) {
    return Level::broadcast(scales.of[step]);
  }
  static Level::Vector widen(const int8_t* from) {
    return Level::Vector{static_cast<float>(from[0]), static_cast<float>(from[1]),
                         static_cast<float>(from[2]), static_cast<float>(from[3])};
  }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/attend_tokens_template.h"
#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/linear_template.h"
#include "kernel/exec/kernels/rows_template.h"

namespace djinn::kernels {
extern const Kernels kKernelsBase = {kLinearOfThisLevel, kRowsOfThisLevel, kAttendOfThisLevel};
}  // namespace djinn::kernels
