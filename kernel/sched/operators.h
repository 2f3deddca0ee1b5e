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
  kLinears,      // x, weights[], biases[]: several of them
  kMatmul,       // a, b
  kAddmm,        // bias, a, b
  kGroupedMm,    // rows, a weight a group, where groups end
  kAttention,    // q, k, v, mask
  kAppend,       // buffer, new, position
  kEmbedding,    // table, indices
  kConvolution,  // x, weight, ...
  kPooling,      // x, ...: windows of it
  kNorm,         // x, ...: the result has x's shape
  kSoftmax,      // x: likewise
  kActivation,   // x: likewise; the non-linear step of an MLP
  kGate,         // x, factor: likewise; an activation and the product behind it
  kUnary,        // x: likewise
  kBinary,       // a, b: broadcast
  kReduction,    // x, dimensions, keep: sizes of 1, or none, where dimensions were
  kRope,         // x, ...: the result has x's shape
  kAngle,        // x: likewise; sines and cosines
  kCopy,         // x: likewise, in another dtype or layout; copy_: target, source
  kFill,         // makes numbers of nothing
  kJoin,         // tensors[], dimension
  kRepeat,       // x, times
  kGather,       // x, ..., indices: some of its elements
  kScatter,      // x, ..., some elements: changes those
  kTopK,         // x, ...: the largest, and where they are
  kSort,         // x, ...: likewise all
  kView,         // x, ...: the same elements under other sizes
};

// "aten::add" of "aten::add_.Tensor": without overload and without the sign of the in-place form.
[[nodiscard]] std::string_view base_name(std::string_view op);

// Whether the operator writes its first argument: "aten::add_.Tensor", "djinn::kv_append".
[[nodiscard]] bool is_in_place(std::string_view op);

// Of the backward pass.
[[nodiscard]] bool is_backward(std::string_view op);

[[nodiscard]] Family family_of(std::string_view op);

}  // namespace djinn::sched
