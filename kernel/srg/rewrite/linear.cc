// SPDX-License-Identifier: Apache-2.0

// Products of activations with a constant matrix, in the forms that captures and builders have:
//
//   aten::linear(x, w, bias)    w is [outputs, inputs]
//   aten::addmm(bias, x, w)     w is [inputs, outputs]
//   aten::mm(x, w), aten::matmul(x, w)
//
// The kernel reads a matrix whose outputs or whose inputs lie side by side.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/srg/rewrite/constant_matrix.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

struct Product {
  ValueId input = 0;
  ValueId weight = 0;
  ArgumentValue bias = None{};
  bool turned = false;  // the matrix is [inputs, outputs]
};

std::optional<ValueId> value_at(const Node& node, size_t position) {
  if (position >= node.arguments.size() || !node.arguments[position].name.empty()) return {};
  const auto* const ref = std::get_if<ValueRef>(&node.arguments[position].value);
  return ref == nullptr ? std::nullopt : std::optional(ref->id);
}

struct Form {
  std::string_view op;
  size_t arguments;  // how many: with beta and alpha aten::addmm would have five
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

// Gives the node as a product if it is one of those above, whatever its weight is.
std::optional<Product> product_of(const Node& node) {
  const auto form = std::ranges::find_if(kForms, [&](const Form& one) {
    return one.op == node.op && one.arguments == node.arguments.size();
  });
  if (form == kForms.end() || node.outputs.size() != 1) return {};
  const auto input = value_at(node, form->input), weight = value_at(node, form->input + 1);
  if (!input || !weight) return {};
  Product product{*input, *weight, None{}, form->turned};
  if (form->bias) product.bias = node.arguments[*form->bias].value;
  return product;
}

bool is_computable(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

// Tells whether the value has more rows than the kernel takes, whatever the symbols are. One whose
// sizes are not known has perhaps fewer.
bool has_many_rows(const Value& value) {
  if (value.storage == kLocalStorage && !value.claims_sizes) return false;
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < value.sizes.size(); ++i) {
    if (!value.sizes[i].is_constant()) return false;
    rows = std::min(rows * std::max<int64_t>(value.sizes[i].constant, 0), kLinearRowsMax + 1);
  }
  return rows > kLinearRowsMax;
}

// Gives why the product stays as it is, or nothing.
std::string_view why_not(const Graph& graph, const Product& product,
                         const std::optional<ConstantMatrix>& matrix) {
  if (!matrix) return "its weight is computed, or has other than two dimensions";
  if (!is_computable(matrix->dtype)) return "its dtype has no kernel";
  if (matrix->row_stride != 1 && matrix->column_stride != 1) return "its weight has gaps";
  if (has_many_rows(graph.values[product.input])) return "it has more than 32 rows";
  if (product.input == product.weight) return "it multiplies the weight by itself";
  return {};
}

void replace(Node& node, Product product) {
  node.op = "djinn::linear_rows";
  node.arguments = {{"", ValueRef{product.input}},
                    {"", ValueRef{product.weight}},
                    {"", std::move(product.bias)},
                    {"", product.turned}};
}

}  // namespace

PassReport rewrite_linear(Graph& graph) {
  PassReport report{"linear", 0, {}};
  const ConstantMatrices matrices(graph);
  for (Node& node : graph.nodes) {
    std::optional<Product> product = product_of(node);
    if (!product) continue;
    const auto matrix = matrices.find(product->weight);
    if (const std::string_view reason = why_not(graph, *product, matrix); !reason.empty()) {
      ++report.reasons[std::string(reason)];
      continue;
    }
    replace(node, *std::move(product));
    ++report.fired;
  }
  return report;
}

}  // namespace djinn::srg
