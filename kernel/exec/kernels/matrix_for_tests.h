// SPDX-License-Identifier: Apache-2.0

// What the tests of kernels share: the levels that this machine has, and rows of elements.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernel/base/half.h"
#include "kernel/exec/kernels/element.h"

namespace djinn::kernels {

inline constexpr int64_t kGap = 3;  // elements behind each row, which nobody reads or writes

inline std::vector<IsaLevel> levels() {
  std::vector<IsaLevel> found;
  for (uint8_t i = 0; i <= static_cast<uint8_t>(best_isa_level()); ++i) {
    found.push_back(static_cast<IsaLevel>(i));
  }
  return found;
}

inline constexpr Element kAllElements[] = {Element::kFloat32, Element::kBFloat16,
                                           Element::kFloat16};

inline const char* name_of(Element element) {
  static constexpr const char* kNames[kElements] = {"float32", "bfloat16", "float16"};
  return kNames[static_cast<size_t>(element)];
}

inline size_t bytes_of(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
template <typename T>
T got(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Of the value, or of one near it that the element type has.
inline void store(Element element, std::byte* at, float value) {
  switch (element) {
    case Element::kFloat32:
      return put(at, value);
    case Element::kBFloat16:
      return put(at, uint16_t(std::bit_cast<uint32_t>(value) >> 16));
    case Element::kFloat16:
      return put(at, static_cast<_Float16>(value));
  }
}

inline float load(Element element, const std::byte* at) {
  switch (element) {
    case Element::kFloat32:
      return got<float>(at);
    case Element::kBFloat16:
      return as_float(got<djinn::BFloat16>(at));
    case Element::kFloat16:
      return as_float(got<djinn::Half>(at));
  }
  return 0;
}

// Rows of elements, with a gap behind each. In what is filled there is no number there, so that who
// reads it is found.
struct Matrix {
  Matrix(Element kind, int64_t row_count, int64_t column_count)
      : element(kind),
        rows(row_count),
        columns(column_count),
        bytes(static_cast<size_t>(rows * stride()) * bytes_of(kind)) {}
  void fill(std::mt19937& random, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) store(element, at(r, c), normal(random));
      for (int64_t c = columns; c < stride(); ++c) store(element, at(r, c), NAN);
    }
  }
  [[nodiscard]] int64_t stride() const { return columns + kGap; }
  std::byte* at(int64_t r, int64_t c) {
    return bytes.data() + static_cast<size_t>(r * stride() + c) * bytes_of(element);
  }
  float get(int64_t r, int64_t c) { return load(element, at(r, c)); }

  Element element;
  int64_t rows, columns;
  std::vector<std::byte> bytes;
};

// How far apart two neighbours are, of their size.
inline double ulp_of(Element element) {
  if (element == Element::kFloat32) return std::ldexp(1.0, -24);
  return std::ldexp(1.0, element == Element::kBFloat16 ? -8 : -11);
}

// The rows [begin, end) as packed weights meet them.
inline std::vector<float> wide_rows(Matrix& x, int64_t begin, int64_t end) {
  std::vector<float> wide;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t k = 0; k < x.columns; ++k) wide.push_back(x.get(r, k));
  }
  return wide;
}

}  // namespace djinn::kernels
