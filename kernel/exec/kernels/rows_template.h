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

// The mean over a row of what `f` adds to a sum for each part of it, of which the last may have
// zeros behind the row: f(sum, part, how many of its elements are the row's).
template <typename T, typename F>
inline float mean_of(const T* x, int64_t width, const F& f) {
  Vector sums[kSums] = {Level::zero(), Level::zero(), Level::zero(), Level::zero()};
  int64_t k = 0;
  for (; k + kSums * kLanes <= width; k += kSums * kLanes) {
    DJINN_UNROLL
    for (int s = 0; s < kSums; ++s) {
      sums[s] = f(sums[s], Dot<T>::to_vector(x + k + s * kLanes), kLanes);
    }
  }
  for (int s = 0; k < width; k += kLanes, ++s) {
    sums[s] = f(sums[s], load_part(x + k, width - k), width - k);
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
    const float square = mean_of(x, call.width, [](Vector sum, Vector part, int64_t) {
      return Level::fma(part, part, sum);
    });
    const float scale = 1.0f / __builtin_sqrtf(square + call.epsilon);
    for (int64_t k = 0; k < call.width; k += kLanes) {
      const int64_t left = call.width - k;
      Vector value = load_part(x + k, left) * scale;
      if (weight != nullptr) value = value * (load_part(weight + k, left) + call.weight_offset);
      store_part(y + k, value, left);
    }
  }
}

// The first of them, and zeros.
inline Vector only_first(Vector value, int64_t count) {
  if (count >= kLanes) return value;
  float lanes[kLanes] = {};
  memcpy(lanes, &value, static_cast<size_t>(count) * sizeof(float));
  return Level::load_floats(lanes);
}

template <typename T>
void layer_norm(const LayerNorm& call, int64_t begin, int64_t end) {
  const T* const weight = static_cast<const T*>(call.weight);
  const T* const bias = static_cast<const T*>(call.bias);
  for (int64_t row = begin; row < end; ++row) {
    const T* const x = static_cast<const T*>(call.x) + row * call.x_stride;
    T* const y = static_cast<T*>(call.y) + row * call.y_stride;
    const float mean = mean_of(
        x, call.width, [](Vector sum, Vector part, int64_t) { return Level::add(sum, part); });
    const float variance = mean_of(x, call.width, [mean](Vector sum, Vector part, int64_t count) {
      const Vector distance = only_first(part - mean, count);
      return Level::fma(distance, distance, sum);
    });
    const float scale = 1.0f / __builtin_sqrtf(variance + call.epsilon);
    for (int64_t k = 0; k < call.width; k += kLanes) {
      const int64_t left = call.width - k;
      Vector value = (load_part(x + k, left) - mean) * scale;
      if (weight != nullptr) value = value * load_part(weight + k, left);
      if (bias != nullptr) value = value + load_part(bias + k, left);
      store_part(y + k, value, left);
    }
  }
}

// The normal distribution function, to a few units in the last place. Near zero it is 1/2 and an
// odd polynomial; beyond, what is left to 0 or 1 is e^(-x^2 / 2) times a polynomial in
// 1 / (1 + |x| / sqrt(8)). Both polynomials were fitted for the least relative error: 1.2e-9 for
// x^2 < 2, 5e-9 up to |x| = 13.4, behind which e^(-x^2 / 2) is below float.
inline Vector normal_distribution(Vector x) {
  constexpr float kOdd[] = {0x1.988454p-2f,  -0x1.105832p-4f,  0x1.46cebap-7f, -0x1.371b98p-10f,
                            0x1.e0dd32p-14f, -0x1.28f5bep-17f, 0x1.d1dcdap-22f};
  constexpr float kTail[] = {-0x1.53bc1cp-19f, 0x1.20feb6p-3f,  0x1.1f82ccp-3f,
                             0x1.044172p-3f,   0x1.3ba272p-4f,  0x1.d07782p-5f,
                             0x1.ebb77cp-8f,   -0x1.6ca446p-4f, 0x1.42d1ccp-5f};
  constexpr float kRootOfEighth = 0x1.6a09e6p-2f;
  const Vector square = x * x;
  const Vector u = 1.0f / (1.0f + kRootOfEighth * (x < 0.0f ? -x : x));
  const Vector tail = exp_of(-0.5f * square) * polynomial(kTail, u);
  const Vector beyond = x < 0.0f ? tail : 1.0f - tail;
  return square < 2.0f ? 0.5f + x * polynomial(kOdd, square) : beyond;
}

// The others are x / (1 + e^-z): silu with z = x; and since 1 + tanh(u) is 2 / (1 + e^-2u),
// gelu with z = 2u.
template <Activation kActivation>
inline Vector activated(Vector x) {
  if (kActivation == Activation::kGelu) return x * normal_distribution(x);
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
    case Activation::kGelu:
      return gate_with<T, Activation::kGelu>(call, begin, end);
    case Activation::kGeluTanh:
      return gate_with<T, Activation::kGeluTanh>(call, begin, end);
  }
}

// Each two neighbours change places, and what comes first is negated.
inline Vector turned_pairs(Vector value) {
  typedef uint64_t Pairs __attribute__((vector_size(sizeof(Vector))));
  constexpr uint64_t kSign = 0x80000000;
  Pairs pairs;
  memcpy(&pairs, &value, sizeof pairs);
  pairs = ((pairs >> 32) | (pairs << 32)) ^ kSign;
  memcpy(&value, &pairs, sizeof value);
  return value;
}

template <typename T>
void rope_of_pairs(const Rope& row) {
  const T* const x = static_cast<const T*>(row.x);
  const T* const cos = static_cast<const T*>(row.cos);
  const T* const sin = static_cast<const T*>(row.sin);
  T* const y = static_cast<T*>(row.y);
  for (int64_t k = 0; k < row.width; k += kLanes) {
    const int64_t left = row.width - k;
    const Vector value = load_part(x + k, left);
    const Vector turned = turned_pairs(value) * load_part(sin + k, left);
    store_part(y + k, Level::fma(value, load_part(cos + k, left), turned), left);
  }
}

template <typename T>
void rope(const Rope& row) {
  if (row.interleaved) return rope_of_pairs<T>(row);
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
    {&layer_norm<float>, &layer_norm<BFloat16>, &layer_norm<Float16>},
    {&gate<float>, &gate<BFloat16>, &gate<Float16>},
    {&rope<float>, &rope<BFloat16>, &rope<Float16>}};

}  // namespace
}  // namespace djinn::kernels
