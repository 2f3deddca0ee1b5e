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

// --- which they are

template <typename T>
const T* argument(const srg::Node& node, size_t position) {
  if (node.arguments.size() <= position) return nullptr;
  return std::get_if<T>(&node.arguments[position].value);
}

// weight: [outputs, inputs], or turned.
std::optional<HeldBeside> product_with(const AdmittedGraph& program, const Inference& inference,
                                       srg::ValueId input, srg::ValueId weight, bool turned) {
  const ValueShape& shape = inference.samples[0].shapes[weight];
  const at::Tensor& bound = program.constants[weight];
  // What stands for a weight in int8 until the graph is rewritten has no such dimensions.
  if (!bound.defined() || bound.dim() != 2 || shape.sizes.size() != 2) return std::nullopt;
  auto view = fit_view(inference, input);
  if (!view || view->sizes.size() < 2) return std::nullopt;
  HeldBeside product;
  product.dtype = view->dtype;
  product.sizes = std::move(view->sizes);
  product.strides = std::move(view->strides);
  product.outputs = static_cast<uint64_t>(shape.sizes[turned ? 1 : 0]);
  product.inputs = static_cast<uint64_t>(shape.sizes[turned ? 0 : 1]);
  product.inputs_dense = bound.stride(turned ? 0 : 1) == 1;
  product.is_int8 = bound.scalar_type() == at::kChar;
  return product;
}

// As if its groups' rows were one's: what is held does not depend on how they are shared out.
std::vector<HeldBeside> of_groups(const AdmittedGraph& program, const Inference& inference,
                                  const srg::Node& node) {
  const auto* const input = argument<srg::ValueRef>(node, 0);
  const auto* const weights = argument<srg::ValueRef>(node, 1);
  auto view = input == nullptr ? std::nullopt : fit_view(inference, input->id);
  if (!view || weights == nullptr || view->sizes.size() < 2) return {};
  const ValueShape& shape = inference.samples[0].shapes[weights->id];
  const at::Tensor& bound = program.constants[weights->id];
  if (!bound.defined() || bound.dim() != 3 || shape.sizes.size() != 3) return {};
  HeldBeside product;
  product.dtype = view->dtype;
  product.sizes = std::move(view->sizes);
  product.strides = std::move(view->strides);
  product.inputs = static_cast<uint64_t>(shape.sizes[1]);
  product.outputs = static_cast<uint64_t>(shape.sizes[2]);
  product.inputs_dense = bound.stride(1) == 1;
  product.is_ours = true;
  product.is_grouped = true;
  return {std::move(product)};
}

}  // namespace

uint64_t HeldBeside::bytes_at(std::span<const int64_t> symbols) const {
  const auto input = input_at(*this, symbols);
  if (!input) return 0;
  return is_ours ? of_our_kernels(*this, *input) : of_the_library(*this, *input);
}

std::vector<HeldBeside> held_beside(const AdmittedGraph& program, const Inference& inference,
                                    const Step& step) {
  const srg::Node& node = program.graph.nodes[step.node];
  if (node.op == "djinn::grouped_rows") return of_groups(program, inference, node);
  const bool is_one = node.op == "djinn::linear_rows", is_sum = node.op == "aten::addmm";
  const bool is_turned = is_sum || node.op == "aten::mm" || node.op == "aten::matmul";
  const bool is_plain = is_turned || node.op == "aten::linear";
  if (!is_one && !is_plain && node.op != "djinn::linears") return {};
  const size_t first = is_sum ? 1 : 0;  // behind what is added
  const auto* const input = argument<srg::ValueRef>(node, first);
  const auto* const weight = argument<srg::ValueRef>(node, first + 1);
  const auto* const weights = argument<srg::ValueList>(node, first + 1);
  const auto* const turned = argument<bool>(node, 3);
  if (input == nullptr) return {};
  std::vector<std::optional<srg::ValueId>> ids;
  if (weight != nullptr) ids.push_back(weight->id);
  if (weights != nullptr) ids = weights->ids;
  std::vector<HeldBeside> products;
  for (const auto& id : ids) {
    if (!id) continue;
    auto product = product_with(program, inference, input->id, *id,
                                is_turned || (turned != nullptr && *turned));
    if (!product) continue;
    product->is_ours = !is_plain;
    products.push_back(*std::move(product));
  }
  return products;
}

}  // namespace djinn::exec
