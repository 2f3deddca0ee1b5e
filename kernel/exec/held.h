// SPDX-License-Identifier: Apache-2.0

// Held: what products and gates hold beside their results while they compute, as far as it can be
// told before they do. Of attention, norms and the like it is little.
//
//   copies    of an input that cannot be seen as rows of one matrix, such as the last token of
//             several rows or of a longer prompt, PyTorch makes a product of batches, and oneDNN,
//             which multiplies 16 bits, wants the weight of each batch side by side
//   parts     of our own kernels, where a weight's outputs lie side by side: sums of chunks of the
//             inputs, or weights that are turned
//   quantised rows, for weights in int8 whose inputs lie side by side
//   split     rows of float32 (kernels/linear.h)
//   dense     operands of djinn::gate that are parts of a tensor, as where one product gives both
#pragma once

#include <span>
#include <vector>

#include "kernel/srg/graph.h"

namespace djinn::exec {

struct AdmittedGraph;
struct Inference;
struct Step;

// A product, and where its input lies; or what djinn::gate copies.
struct HeldBeside {
  DType dtype = DType::kInvalid;
  std::vector<srg::Expr> sizes;  // of the input, and its strides
  std::vector<srg::Expr> strides;
  uint64_t outputs = 0;  // of the weight
  uint64_t inputs = 0;
  bool is_ours = false;  // our own kernels' as far as they take it, and else PyTorch's
  bool inputs_dense = true;
  bool is_int8 = false;
  bool is_grouped = false;  // djinn::grouped_rows
  bool is_gate = false;
  std::vector<srg::Expr> factor_strides;  // of a gate's factor, which has the input's sizes

  // Bytes at these symbols. The lane's thread: they depend on how many it has.
  [[nodiscard]] uint64_t bytes_at(std::span<const int64_t> symbols) const;
};

// Of a step, each product of which comes after the others.
[[nodiscard]] std::vector<HeldBeside> held_beside(const AdmittedGraph& program,
                                                  const Inference& inference, const Step& step);

}  // namespace djinn::exec
