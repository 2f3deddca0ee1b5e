// SPDX-License-Identifier: Apache-2.0

// What the levels share of their element types, after a level has described itself and before it
// says how its vectors are loaded. As in linear_template.h, nothing of the standard library.
#pragma once

#include "kernel/exec/kernels/elements.h"

namespace djinn::kernels {
namespace {

template <typename T>
struct Dot;

// A step multiplies a vector of floats.
template <typename T>
struct WidenedDot {
  using Operand = Level::Vector;
  static constexpr int kStep = Level::kLanes;
  static Operand load(const T* from) { return Dot<T>::to_vector(from); }
  static Level::Vector step(Level::Vector sum, Operand a, Operand b) {
    return Level::fma(a, b, sum);
  }
};

struct BFloat16Elements {
  static float widen(BFloat16 value) { return widen_bfloat16(value); }
  static BFloat16 round(float value) { return to_bfloat16(value); }
};

template <>
struct Dot<float> : WidenedDot<float> {
  static Level::Vector to_vector(const float* from) { return Level::load_floats(from); }
  static float widen(float value) { return value; }
  static float round(float value) { return value; }
};

}  // namespace
}  // namespace djinn::kernels
