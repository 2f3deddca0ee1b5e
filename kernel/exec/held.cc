// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/held.h"

#include <ATen/Parallel.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <variant>

#include "kernel/base/checked.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/fast_rows.h"
#include "kernel/exec/inference.h"
#include "kernel/exec/kernels/linear.h"
#include "kernel/exec/program.h"
#include "kernel/srg/expr.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::exec {
namespace {

template <typename T>
const T* argument(const srg::Node& node, size_t position) {
  if (node.arguments.size() <= position) return nullptr;
  return std::get_if<T>(&node.arguments[position].value);
}

// --- what the library does here

// Inputs and outputs of the product that is asked for: fewer are not oneDNN's.
constexpr int64_t kAsked = 256;

// Gives what that product holds beside a copy of its weight, which grows with the inputs; nothing:
// it copies none.
std::optional<uint64_t> ask(at::ScalarType type) {
  const c10::InferenceMode inference_mode;
  const at::Tensor weight = at::zeros({kAsked, kAsked}, type);
  const at::Tensor input = at::zeros({1, 2, kAsked}, type).narrow(1, 1, 1);
  UnboundedHeap owner;
  Heap heap(owner);
  Arena arena({}, heap);
  Recorder recorder(arena);
  const ScopedSink sink(recorder);
  const at::Tensor result = at::linear(input, weight);
  const uint64_t held = recorder.peak_live_bytes() - result.nbytes();
  return held < weight.nbytes() ? std::nullopt : std::optional(held - weight.nbytes());
}

std::optional<uint64_t> beside_copies(DType dtype) {
  if (dtype == DType::kBFloat16) {
    static const auto bfloat16 = ask(at::kBFloat16);
    return bfloat16;
  }
  if (dtype != DType::kFloat16) return std::nullopt;
  static const auto float16 = ask(at::kHalf);
  return float16;
}

// --- a product at a run's symbols

struct Input {
  uint64_t rows = 1;
  uint64_t batches = 1;   // of all dimensions but the last two
  uint64_t tokens = 1;    // of the last dimension but one, where there are more
  bool is_matrix = true;  // rows are as far apart in all dimensions but the last
};

std::optional<Input> input_at(const HeldBeside& product, std::span<const int64_t> symbols) {
  Input input;
  const size_t outer = product.sizes.size() - 1;
  std::optional<int64_t> dense;  // how far apart the next dimension's elements are, if it is even
  for (size_t d = outer; d-- > 0;) {
    const auto size = srg::evaluate(product.sizes[d], symbols);
    const auto step = srg::evaluate(product.strides[d], symbols);
    const auto rows =
        size && *size > 0 ? checked_mul(input.rows, static_cast<uint64_t>(*size)) : std::nullopt;
    if (!rows || !step) return std::nullopt;
    if (d + 1 == outer && outer > 1) input.tokens = static_cast<uint64_t>(*size);
    if (d + 1 < outer) {
      input.batches *= static_cast<uint64_t>(*size);  // as many as there are rows at most
      input.is_matrix = input.is_matrix && dense && *step == *dense;
    }
    input.rows = *rows;
    dense = checked_mul(*size, *step);
  }
  return input;
}

uint64_t product_of(std::initializer_list<uint64_t> factors) {
  uint64_t product = 1;
  for (const uint64_t factor : factors) {
    product = checked_mul(product, factor).value_or(UINT64_MAX);
  }
  return product;
}

// What oneDNN packs of 16 bits at most: for each thread 64 outputs of the weight, some tables, and
// of many inputs sums of the rows, of which it computes a part at a time. As with AMX, for which it
// packs most.
uint64_t packed(const HeldBeside& product, const Input& input) {
  if (product.dtype != DType::kBFloat16 && product.dtype != DType::kFloat16) return 0;
  constexpr uint64_t kOutputs = 64, kTables = 8 * 1024;
  constexpr uint64_t kInputsInOne = 1024, kRowsMax = 128, kBytesOfRow = 1024;
  const uint64_t weights = product_of({kOutputs, product.inputs, size_of(product.dtype)});
  const bool has_sums = product.inputs > kInputsInOne;
  const uint64_t sums = has_sums ? std::min(input.rows, kRowsMax) * kBytesOfRow : 0;
  const uint64_t each = checked_add(weights, sums + kTables).value_or(UINT64_MAX);
  return product_of({static_cast<uint64_t>(at::get_num_threads()), each});
}

// Of a product that is PyTorch's.
uint64_t of_the_library(const HeldBeside& product, const Input& input) {
  const uint64_t of_threads = packed(product, input);
  const auto beside = input.is_matrix ? std::nullopt : beside_copies(product.dtype);
  if (!beside) return of_threads;
  const uint64_t weights =
      product_of({input.batches, product.outputs, product.inputs, size_of(product.dtype)});
  const uint64_t asked = product_of({*beside, product.inputs}) / kAsked;
  return checked_add(weights, std::max(asked, of_threads)).value_or(UINT64_MAX);
}

// As fast_linear.cc makes them.
uint64_t of_our_kernels(const HeldBeside& product, const Input& input) {
  const auto inputs = static_cast<int64_t>(product.inputs);
  const bool are_many = input.rows > uint64_t{srg::kLinearRowsMax};
  const bool are_split = product.inputs_dense && !product.is_grouped &&
                         input.tokens > uint64_t{srg::kLinearRowsMax} && !product.is_int8 &&
                         product.dtype == DType::kFloat32 &&
                         fast_kernels().linear.split.split != nullptr;
  if (are_split) {
    return product_of({input.rows, static_cast<uint64_t>(kernels::split_bytes(inputs))});
  }
  if (product.inputs_dense) {
    if (!product.is_int8) return 0;
    return product_of({input.rows, static_cast<uint64_t>(kernels::quantised_bytes(inputs))});
  }
  if (are_many) {
    const uint64_t packed =
        product_of({static_cast<uint64_t>(at::get_num_threads()),
                    static_cast<uint64_t>(kernels::packed_floats(inputs)), sizeof(float)});
    const bool is_wide = product.dtype == DType::kFloat32;
    const uint64_t rows = is_wide ? 0 : product_of({input.rows, product.inputs, sizeof(float)});
    return checked_add(packed, rows).value_or(UINT64_MAX);
  }
  const auto outputs = static_cast<int64_t>(product.outputs);
  return product_of({static_cast<uint64_t>(kernels::chunks_of(inputs)), input.rows,
                     static_cast<uint64_t>(kernels::padded_outputs(outputs)), sizeof(float)});
}

// --- a gate at a run's symbols

// Of a copy of what is seen so, which own_gate() makes where it does not lie dense.
uint64_t copy_bytes(const HeldBeside& gate, const std::vector<srg::Expr>& strides,
                    std::span<const int64_t> symbols) {
  uint64_t elements = 1;
  bool is_dense = true;
  for (size_t d = strides.size(); d-- > 0;) {
    const auto size = srg::evaluate(gate.sizes[d], symbols);
    const auto step = srg::evaluate(strides[d], symbols);
    if (!size || !step || *size < 0) return 0;
    is_dense = is_dense && (*size == 1 || static_cast<uint64_t>(*step) == elements);
    elements = product_of({elements, static_cast<uint64_t>(*size)});
  }
  return is_dense ? 0 : product_of({elements, size_of(gate.dtype)});
}

std::vector<HeldBeside> gate_of(const Inference& inference, const srg::Node& node) {
  const auto* const given = argument<srg::ValueRef>(node, 0);
  const auto* const factor = argument<srg::ValueRef>(node, 1);
  auto view = given == nullptr ? std::nullopt : fit_view(inference, given->id);
  if (!view) return {};
  HeldBeside gate;
  gate.is_gate = true;
  gate.dtype = view->dtype;
  gate.sizes = std::move(view->sizes);
  gate.strides = std::move(view->strides);
  auto other = factor == nullptr ? std::nullopt : fit_view(inference, factor->id);
  if (other && other->sizes == gate.sizes) gate.factor_strides = std::move(other->strides);
  return {std::move(gate)};
}

// --- which they are

// How a weight's dimensions follow each other.
enum class Lies : uint8_t { kOutputsFirst, kInputsFirst, kInGroups };  // of which inputs are first

// Of groups as if their rows were one's: what is held does not depend on how they are shared out.
std::optional<HeldBeside> product_with(const AdmittedGraph& program, const Inference& inference,
                                       srg::ValueId input, srg::ValueId weight, Lies lies) {
  const ValueShape& shape = inference.samples[0].shapes[weight];
  const at::Tensor& bound = program.constants[weight];
  const bool is_grouped = lies == Lies::kInGroups;
  const size_t rank = is_grouped ? 3 : 2;
  // What stands for a weight in int8 until the graph is rewritten has no such dimensions.
  if (!bound.defined() || static_cast<size_t>(bound.dim()) != rank || shape.sizes.size() != rank) {
    return std::nullopt;
  }
  auto view = fit_view(inference, input);
  if (!view || view->sizes.size() < 2) return std::nullopt;
  size_t outputs = rank - 2, inputs = rank - 1;
  if (lies != Lies::kOutputsFirst) std::swap(outputs, inputs);
  HeldBeside product;
  product.dtype = view->dtype;
  product.sizes = std::move(view->sizes);
  product.strides = std::move(view->strides);
  product.outputs = static_cast<uint64_t>(shape.sizes[outputs]);
  product.inputs = static_cast<uint64_t>(shape.sizes[inputs]);
  product.inputs_dense = bound.stride(static_cast<int64_t>(inputs)) == 1;
  product.is_int8 = bound.scalar_type() == at::kChar && !is_grouped;
  product.is_grouped = is_grouped;
  return product;
}

}  // namespace

uint64_t HeldBeside::bytes_at(std::span<const int64_t> symbols) const {
  if (is_gate) {
    return checked_add(copy_bytes(*this, strides, symbols),
                       copy_bytes(*this, factor_strides, symbols))
        .value_or(UINT64_MAX);
  }
  const auto input = input_at(*this, symbols);
  if (!input) return 0;
  return is_ours ? of_our_kernels(*this, *input) : of_the_library(*this, *input);
}

std::vector<HeldBeside> held_beside(const AdmittedGraph& program, const Inference& inference,
                                    const Step& step) {
  const srg::Node& node = program.graph.nodes[step.node];
  if (node.op == "djinn::gate") return gate_of(inference, node);
  const bool is_one = node.op == "djinn::linear_rows", is_sum = node.op == "aten::addmm";
  const bool is_grouped = node.op == "djinn::grouped_rows";
  const bool is_turned = is_sum || node.op == "aten::mm" || node.op == "aten::matmul";
  const bool is_plain = is_turned || node.op == "aten::linear";
  if (!is_one && !is_grouped && !is_plain && node.op != "djinn::linears") return {};
  const size_t first = is_sum ? 1 : 0;  // behind what is added
  const auto* const input = argument<srg::ValueRef>(node, first);
  const auto* const weight = argument<srg::ValueRef>(node, first + 1);
  const auto* const weights = argument<srg::ValueList>(node, first + 1);
  const auto* const turned = argument<bool>(node, 3);
  if (input == nullptr) return {};
  std::vector<std::optional<srg::ValueId>> ids;
  if (weight != nullptr) ids.push_back(weight->id);
  if (weights != nullptr) ids = weights->ids;
  const bool has_inputs_first = is_turned || (turned != nullptr && *turned);
  const Lies lies = is_grouped         ? Lies::kInGroups
                    : has_inputs_first ? Lies::kInputsFirst
                                       : Lies::kOutputsFirst;
  std::vector<HeldBeside> products;
  for (const auto& id : ids) {
    if (!id) continue;
    auto product = product_with(program, inference, input->id, *id, lies);
    if (!product) continue;
    product->is_ours = !is_plain;
    products.push_back(*std::move(product));
  }
  return products;
}

}  // namespace djinn::exec
