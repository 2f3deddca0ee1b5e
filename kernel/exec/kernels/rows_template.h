// SPDX-License-Identifier: Apache-2.0

// The row kernels of a level (vectors.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernel/exec/kernels/rows.h"
#include "kernel/exec/kernels/vectors.h"

namespace djinn::kernels {
namespace {

constexpr int kSums = 4;  // side by side, so that one addition does not wait for another

template <typename T>
float mean_of_squares(const T* x, int64_t width) {
  Vector sums[kSums] = {Level::zero(), Level::zero(), Level::zero(), Level::zero()};
  int64_t k = 0;
  for (; k + kSums * kLanes <= width; k += kSums * kLanes) {
    DJINN_UNROLL
    for (int s = 0; s < kSums; ++s) {
      const Vector part = Dot<T>::to_vector(x + k + s * kLanes);
      sums[s] = Level::fma(part, part, sums[s]);
    }
  }
  for (int s = 0; k < width; k += kLanes, ++s) {
    const Vector part = load_part(x + k, width - k);
    sums[s] = Level::fma(part, part, sums[s]);
  }
  const Vector sum = Level::add(Level::add(sums[0], sums[1]), Level::add(sums[2], sums[3]));
  return Level::sum(sum) / static_cast<float>(width);
}

template <typename T>
void rms_norm(const RmsNorm& call, int64_t begin, int64_t end) {
  const T* const weight = static_cast<const T*>(call.weight);
  for (int64_t row = begin; row < end; ++row) {
    const T* const x = static_cast<const T*>(call.x) + row * call.x_stride;
    T* const y = static_cast<T*>(call.y) + row * call.y_stride;
    const float scale = 1.0f / __builtin_sqrtf(mean_of_squares(x, call.width) + call.epsilon);
    for (int64_t k = 0; k < call.width; k += kLanes) {
      const int64_t left = call.width - k;
      const Vector factor = load_part(weight + k, left) + call.weight_offset;
      store_part(y + k, load_part(x + k, left) * scale * factor, left);
    }
  }
}

// Both activations are x / (1 + e^-z): silu with z = x; and since 1 + tanh(u) is 2 / (1 + e^-2u),
// gelu with z = 2u.
template <Activation kActivation>
inline Vector activated(Vector x) {
  Vector z = x;
  if (kActivation == Activation::kGeluTanh) {
    constexpr float kTwiceRootOfTwoByPi = 0x1.988454p+0f;
    z = kTwiceRootOfTwoByPi * (x + 0.044715f * x * x * x);
  }
  return x / (1.0f + exp_of(-z));
}

template <typename T, Activation kActivation>
void gate_with(const Gate& call, int64_t begin, int64_t end) {
  const T* const x = static_cast<const T*>(call.x);
  const T* const factor = static_cast<const T*>(call.factor);
  T* const y = static_cast<T*>(call.y);
  for (int64_t i = begin; i < end; i += kLanes) {
    Vector value = activated<kActivation>(load_part(x + i, end - i));
    if (factor != nullptr) value = value * load_part(factor + i, end - i);
    store_part(y + i, value, end - i);
  }
}

template <typename T>
void gate(const Gate& call, int64_t begin, int64_t end) {
  switch (call.activation) {
    case Activation::kSilu:
      return gate_with<T, Activation::kSilu>(call, begin, end);
    case Activation::kGeluTanh:
      return gate_with<T, Activation::kGeluTanh>(call, begin, end);
  }
}

template <typename T>
void rope(const Rope& row) {
  const int64_t half = row.width / 2;
  const T* const x = static_cast<const T*>(row.x);
  const T* const cos = static_cast<const T*>(row.cos);
  const T* const sin = static_cast<const T*>(row.sin);
  T* const y = static_cast<T*>(row.y);
  for (int64_t k = 0; k < half; k += kLanes) {
    const int64_t left = half - k;
    const Vector a = load_part(x + k, left), b = load_part(x + half + k, left);
    store_part(y + k, a * load_part(cos + k, left) - b * load_part(sin + k, left), left);
    store_part(y + half + k,
               b * load_part(cos + half + k, left) + a * load_part(sin + half + k, left), left);
  }
}

constexpr RowKernels kRowsOfThisLevel = {
    {&rms_norm<float>, &rms_norm<BFloat16>, &rms_norm<Float16>},
    {&gate<float>, &gate<BFloat16>, &gate<Float16>},
    {&rope<float>, &rope<BFloat16>, &rope<Float16>}};

}  // namespace
}  // namespace djinn::kernels
