// SPDX-License-Identifier: Apache-2.0

// Casts between element types, with PyTorch's bits.
//
//   ElementCopy   copies `count` elements, cast from one dtype to another, between two strided runs
//
// What PyTorch defines is the rule: floating results are rounded to nearest even; float16, bfloat16
// and float8 are reached through float32 (so float64 is rounded twice, as c10's converting
// constructors do); anything to bool is `!= 0`. What C++ and so PyTorch leave undefined (a float
// that does not fit the integer) gives what x86-64's conversion instructions give, on every
// machine. NaN becomes the NaN of PyTorch's vectorised x86 kernels: in bfloat16 0xffff from float32
// and float64 and 0x7fc0 from smaller formats; sign and upper payload in float16; sign in float8.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/base/dtype.h"
#include "kernel/base/result.h"

namespace djinn::load {

// Strides are bytes. Neither run needs alignment; they do not overlap. Any thread.
using ElementCopy = void (*)(const std::byte* source, uint64_t source_stride, std::byte* target,
                             uint64_t target_stride, uint64_t count);

// The copy from one dtype to another; equal dtypes copy bits unchanged. kUnsupported for complex
// numbers to or from anything else, kInvalidArgument for kInvalid.
Result<ElementCopy> element_copy(DType from, DType to);

}  // namespace djinn::load
