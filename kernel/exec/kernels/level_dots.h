// SPDX-License-Identifier: Apache-2.0

// What the levels with dot products of bf16 share: vectors, and all that templates make of
// them. Included by files that are compiled for one of them.
#pragma once

#include "kernel/exec/kernels/level_avx512.h"

namespace djinn::kernels {
namespace {

// A step multiplies pairs and adds them to 16 sums.
template <>
struct Dot<BFloat16> : BFloat16Elements {
  using Operand = __m512bh;
  static constexpr int kStep = 32;
  static Operand load(const BFloat16* from) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
  }
  static Level::Vector step(Level::Vector sum, Operand a, Operand b) {
    return _mm512_dpbf16_ps(sum, a, b);
  }
  static Level::Vector to_vector(const BFloat16* from) { return widened_bfloat16(from); }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/attend_tokens_template.h"
#include "kernel/exec/kernels/linear_template.h"
#include "kernel/exec/kernels/rows_template.h"
