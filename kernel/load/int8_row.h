// SPDX-License-Identifier: Apache-2.0

// Makes rows of a matrix int8: kernel/base/int8_rows.h says how they lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/base/dtype.h"

namespace djinn::load {

// Casts `columns` dense elements to a dtype, as cast.h does, and makes a row of int8 of what that
// gives: int8_row_bytes(columns) bytes at `target`. A block's scale is the least bfloat16 with
// which its largest magnitude is at most 127; each value is the nearest multiple of it, ties to
// even. Precondition: there is that cast, and the dtype is float32, bfloat16 or float16. Any
// alignment, any thread.
void make_int8_row(const std::byte* source, DType from, DType dtype, uint64_t columns,
                   std::byte* target);

}  // namespace djinn::load
