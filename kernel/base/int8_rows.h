// SPDX-License-Identifier: Apache-2.0

// Rows of a matrix in int8, as the loader makes them and kernels read them.
//
// A row is its values, each int8, then the scales of its blocks, each a bfloat16, then zeros up to
// a multiple of a cache line:
//
//   value[column] = int8[column] * scale[column / kInt8Block]
//
// Values are padded to whole lines, scales to kInt8ScalesAtOnce, with zeros, so that kernels read
// whole vectors. int8 is never -128. A block whose values were not all finite has a scale of NaN.
// A file that is compiled for a level of instructions may include this.
#pragma once

#include <stdint.h>

namespace djinn {

inline constexpr int kInt8Block = 32;
inline constexpr int kInt8ValuesAtOnce = 64;
inline constexpr int kInt8ScalesAtOnce = 16;
inline constexpr int kInt8Most = 127;

template <typename Int>
[[nodiscard]] constexpr Int int8_padded(Int count, int multiple) {
  const Int step = static_cast<Int>(multiple);
  return (count + step - 1) / step * step;
}

// Bytes from a row's begin to its scales.
template <typename Int>
[[nodiscard]] constexpr Int int8_scales_offset(Int columns) {
  return int8_padded(columns, kInt8ValuesAtOnce);
}
// How many scales it has, padding included.
template <typename Int>
[[nodiscard]] constexpr Int int8_scales(Int columns) {
  return int8_padded((columns + kInt8Block - 1) / kInt8Block, kInt8ScalesAtOnce);
}
// Bytes from one row to the next. Precondition: columns are so few that this does not overflow.
template <typename Int>
[[nodiscard]] constexpr Int int8_row_bytes(Int columns) {
  return int8_padded(int8_scales_offset(columns) + 2 * int8_scales(columns), kInt8ValuesAtOnce);
}

}  // namespace djinn
