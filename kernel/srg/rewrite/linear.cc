// SPDX-License-Identifier: Apache-2.0

// Products of activations with a constant matrix, in the forms that captures and builders have:
//
//   aten::linear(x, w, bias)    w is [outputs, inputs]
//   aten::addmm(bias, x, w)     w is [inputs, outputs]
//   aten::mm(x, w), aten::matmul(x, w)
//   aten::bmm(x, w)             w is [groups, inputs, outputs]
//   aten::_grouped_mm(x, w, ends)    likewise, and may be computed
//
// The kernel reads a matrix whose outputs or whose inputs lie side by side; a GPU's reads 16 bytes
// of it at once.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/srg/rewrite/constant_matrix.h"
#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::srg {
namespace {

struct Product {
  ValueId input = 0;
  ValueId weight = 0;
  ArgumentValue bias = None{};
  bool turned = false;  // the matrix is [inputs, outputs]
};

struct Form {
  std::string_view op;
  size_t arguments;  // how many, but for those that are named and one
  size_t input;      // which argument; the weight is the next one
  std::optional<size_t> bias;
  bool turned;
};

constexpr std::array<Form, 5> kForms{{
    {"aten::linear", 2, 0, std::nullopt, false},
    {"aten::linear", 3, 0, 2, false},
    {"aten::addmm", 3, 1, 0, true},
    {"aten::mm", 2, 0, std::nullopt, true},
    {"aten::matmul", 2, 0, std::nullopt, true},
}};

// Counts the factors beta and alpha that change nothing.
size_t ones_named(const Node& node) {
  return static_cast<size_t>(std::ranges::count_if(node.arguments, [](const Argument& one) {
    return (one.name == "beta" || one.name == "alpha") && number_of(one.value) == 1.0;
  }));
}

// Gives the node as a product if it is one of those above, whatever its weight is.
std::optional<Product> product_of(const Node& node) {
  const size_t arguments = node.arguments.size() - ones_named(node);
  const auto form = std::ranges::find_if(
      kForms, [&](const Form& one) { return one.op == node.op && one.arguments == arguments; });
  if (form == kForms.end() || node.outputs.size() != 1) return {};
  const auto input = value_at(node, form->input), weight = value_at(node, form->input + 1);
  if (!input || !weight) return {};
  Product product{*input, *weight, None{}, form->turned};
  if (form->bias) product.bias = node.arguments[*form->bias].value;
  return product;
}

// Of a node that is none of those above.
bool is_other_product(std::string_view op) {
  constexpr std::array<std::string_view, 3> kOthers{"aten::_grouped_mm", "aten::baddbmm",
                                                    "aten::bmm"};
  return std::ranges::find(kOthers, op) != kOthers.end() ||
         std::ranges::find(kForms, op, &Form::op) != kForms.end();
}

bool is_computable(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

bool is_of_the_model(const Graph& graph, ValueId value) {
  const StorageIndex storage = graph.values[value].storage;
  return storage != kLocalStorage && graph.storages[storage].kind == StorageKind::kWeight;
}

// Of a bias whose sizes are not known it is found at the run.
bool has_bias_of_rows(const Graph& graph, const Product& product) {
  const auto* bias = std::get_if<ValueRef>(&product.bias);
  return bias != nullptr && graph.values[bias->id].sizes.size() > 1;
}

// Whether each row of what lies side by side begins at a multiple of 16 bytes, as weights do.
bool has_vectors(const ConstantMatrix& matrix) {
  const int64_t stride = matrix.column_stride == 1 ? matrix.row_stride : matrix.column_stride;
  return stride * static_cast<int64_t>(size_of(matrix.dtype)) % 16 == 0;
}

// Gives why the product stays as it is, or nothing.
std::string_view why_not(const Draft& draft, const Product& product,
                         const std::optional<ConstantMatrix>& matrix) {
  const Graph& graph = draft.graph();
  if (!matrix) {
    return is_of_the_model(graph, product.weight) ? "its weight has other than two dimensions"
                                                  : "its weight is computed or an input";
  }
  if (matrix->form) {
    if (has_bias_of_rows(graph, product)) return "its bias has other than one dimension";
    return matrix->form->is_whole ? "" : "it reads a part of a weight that is int8";
  }
  if (!is_computable(matrix->dtype)) return "its dtype has no kernel";
  if (matrix->row_stride != 1 && matrix->column_stride != 1) return "its weight has gaps";
  if (draft.target() == Target::kGpu) {
    if (!has_vectors(*matrix)) return "its weight has rows of no multiple of 16 bytes";
  }
  if (product.input == product.weight) return "it multiplies the weight by itself";
  return {};
}

// Products of groups of rows with a matrix each: of no bias, in their own dtype.
std::optional<Node> grouped(const Draft& draft, const Node& node) {
  constexpr size_t kOperands = 2;
  const auto is_none = [](const Argument& one) { return std::holds_alternative<None>(one.value); };
  if (draft.target() != Target::kHost || node.outputs.size() != 1) return {};
  const auto weights = value_at(node, 1);
  Node made{"djinn::grouped_rows", {}, node.outputs, {}};
  if (node.op == "aten::bmm" && weights && is_of_the_model(draft.graph(), *weights)) {
    made.arguments = node.arguments;
    made.arguments.push_back({"", None{}});
    return made;
  }
  const bool has_ends =
      node.op == "aten::_grouped_mm" && value_at(node, kOperands) &&
      std::all_of(node.arguments.begin() + kOperands + 1, node.arguments.end(), is_none);
  if (!has_ends) return {};
  for (size_t i = 0; i <= kOperands; ++i) made.arguments.push_back({"", node.arguments[i].value});
  return made;
}

Node made_of(Product product, std::vector<ValueId> outputs) {
  return {"djinn::linear_rows",
          {{"", ValueRef{product.input}},
           {"", ValueRef{product.weight}},
           {"", std::move(product.bias)},
           {"", product.turned}},
          std::move(outputs),
          {}};
}

}  // namespace

PassReport rewrite_linear(Draft& draft) {
  PassReport report{"linear", 0, {}};
  const ConstantMatrices matrices(draft);
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    if (!draft.is_there(i)) continue;
    std::optional<Product> product = product_of(draft.node(i));
    if (!product) {
      if (std::optional<Node> made = grouped(draft, draft.node(i))) {
        draft.replace(i, *std::move(made));
        ++report.fired;
        continue;
      }
      if (is_other_product(draft.node(i).op)) report.leave("it is another product");
      continue;
    }
    const auto matrix = matrices.find(product->weight);
    const std::string_view reason = why_not(draft, *product, matrix);
    if (!reason.empty()) {
      report.leave(reason);
      report.missed += matrix ? 1 : 0;
      continue;
    }
    if (matrix->form) {
      product->weight = matrix->form->base;
      product->turned ^= matrix->form->is_turned;
    }
    draft.replace(i, made_of(*std::move(product), draft.node(i).outputs));
    ++report.fired;
  }
  return report;
}

}  // namespace djinn::srg
