// SPDX-License-Identifier: Apache-2.0

// Families of operators: what annotate.h and cost.h know of an operator without its schema. An
// operator that is in none is kOther, and nothing is concluded from it.
#pragma once

#include <cstdint>
#include <string_view>

namespace djinn::sched {

enum class Family : uint8_t {
  kOther,
  kLinear,       // x, weight, bias
  kMatmul,       // a, b
  kAttention,    // q, k, v, ...
  kAppend,       // buffer, new, position
  kEmbedding,    // table, indices
  kConvolution,  // x, weight, ...
  kNorm,         // x, ...: the result has x's shape
  kSoftmax,      // x: likewise
  kActivation,   // x: likewise; the non-linear step of an MLP
  kUnary,        // x: likewise
  kBinary,       // a, b: broadcast
  kReduction,    // x, dimensions, keep: sizes of 1, or none, where dimensions were
  kRope,         // x, ...: the result has x's shape
  kView,         // x, ...: the same elements under other sizes
};

// "aten::add" of "aten::add_.Tensor": without overload and without the sign of the in-place form.
[[nodiscard]] std::string_view base_name(std::string_view op);

[[nodiscard]] Family family_of(std::string_view op);

}  // namespace djinn::sched
