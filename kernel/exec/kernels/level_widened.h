// SPDX-License-Identifier: Apache-2.0

// What AVX-512 has without dot products of bf16, and all that templates make of it; included by
// files that are compiled for it.
#pragma once

#include "kernel/exec/kernels/level_avx512.h"

namespace djinn::kernels {
namespace {

template <>
struct Dot<BFloat16> : WidenedDot<BFloat16>, BFloat16Elements {
  static Level::Vector to_vector(const BFloat16* from) { return widened_bfloat16(from); }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/attend_tokens_template.h"
#include "kernel/exec/kernels/linear_template.h"
#include "kernel/exec/kernels/rows_template.h"
