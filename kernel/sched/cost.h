// SPDX-License-Identifier: Apache-2.0

// What an operator costs, by formula from its shapes: floating-point operations, and bytes that are
// read and written. A multiplication with its addition counts as two operations, as in
// torch/utils/flop_counter.py; bytes count every operand and result once, as if nothing stayed in a
// cache. A view costs nothing, and what it shows several times is read once. Weights in int8 are
// read with their scales (kernel/base/int8_rows.h), whatever dtype the graph gives them.
//
//   Shape   dtype and sizes of a tensor at some values of the graph's symbols
//   Cost    of a node, or of some
//
// Sums and products saturate at 2^64 - 1.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernel/base/dtype.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/weight_form.h"

namespace djinn::sched {

struct Shape {
  DType dtype = DType::kInvalid;
  std::vector<uint64_t> sizes;
  uint64_t repeats = 1;  // how often each byte is seen: more than once where a stride is 0
  srg::WeightForm form = srg::WeightForm::kPlain;  // of its bytes, which dtype does not say then
  friend bool operator==(const Shape&, const Shape&) = default;
};

struct Cost {
  uint64_t flops = 0;
  uint64_t read = 0;     // bytes
  uint64_t written = 0;  // likewise
  friend bool operator==(const Cost&, const Cost&) = default;

  [[nodiscard]] uint64_t bytes() const;
  // Operations a byte: below a device's own ratio the operator waits for memory. 0 if it moves
  // none.
  [[nodiscard]] double intensity() const {
    return bytes() == 0 ? 0.0 : static_cast<double>(flops) / static_cast<double>(bytes());
  }
};

[[nodiscard]] Cost operator+(Cost a, Cost b);

[[nodiscard]] uint64_t element_count(const Shape& shape);
[[nodiscard]] uint64_t byte_count(const Shape& shape);

// [.., m, k] by [.., k, n]: 2 m n k for each matrix of the result (flop_counter.py, mm_flop,
// bmm_flop). inner is k.
[[nodiscard]] uint64_t matmul_flops(const Shape& result, uint64_t inner);

// q [b, h, t, d], k [b, hk, s, d], v [b, hk, s, e]: 2 b h t s (d + e), grouped heads counted as h
// (flop_counter.py, sdpa_flop_count); softmax and mask are not counted there and not here.
[[nodiscard]] uint64_t attention_flops(const Shape& q, const Shape& k, const Shape& v);

// weight [out, in / groups, kernel..]: 2 in / groups * kernel for each element of the result
// (flop_counter.py, conv_flop_count).
[[nodiscard]] uint64_t convolution_flops(const Shape& result, const Shape& weight);

// Passes over each element of a norm: mean, difference, square, sum, scale, weight, bias; an
// estimate.
inline constexpr uint64_t kNormFlopsPerElement = 7;

// The shape of every value at these values of the graph's symbols: from views and claims, else by
// the rules of the operators that models are made of; nothing where neither tells. forms: of the
// model that the graph runs with. Precondition: verify() passed graph.
[[nodiscard]] std::vector<std::optional<Shape>> shapes_at(const srg::Graph& graph,
                                                          std::span<const int64_t> symbols,
                                                          const srg::WeightForms& forms = {});

// The upper bound of each symbol.
[[nodiscard]] std::vector<int64_t> upper_symbols(const srg::Graph& graph);

// Nothing where a shape is missing. Of an operator without formula the bytes alone.
[[nodiscard]] std::optional<Cost> cost_of(const srg::Node& node,
                                          std::span<const std::optional<Shape>> shapes);

struct GraphCost {
  std::vector<std::optional<Cost>> nodes;  // as cost_of()
  Cost total;                              // of those that are known
  uint32_t unknown = 0;                    // how many are not
};

// What a run costs at these values of its symbols, one for each, with weights in these forms.
// Precondition: verify() passed graph. Linear in its size; any thread.
[[nodiscard]] GraphCost cost_at(const srg::Graph& graph, std::span<const int64_t> symbols,
                                const srg::WeightForms& forms = {});

}  // namespace djinn::sched
