// SPDX-License-Identifier: Apache-2.0

// Products of one value with several constant matrices (queries, keys and values of attention; both
// sides of a gate) become one node: threads then wait for each other once for all of them. It
// stands at the first product, so what the others read must be there by then. Weights whose outputs
// lie side by side are left alone, because they are summed in parts, one matrix after the other.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernel/srg/operands.h"
#include "kernel/srg/rewrite/constant_matrix.h"
#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

constexpr const char* kLinearRows = "djinn::linear_rows";
// All their results are there at once, where one product after the other may need only one.
constexpr size_t kTogetherMax = 4;

bool is_turned(const Node& product) {
  return std::get<bool>(product.arguments[3].value);
}

bool has_dense_inputs(const ConstantMatrices& matrices, const Node& product) {
  const auto matrix = matrices.find(*value_at(product, 1));
  return matrix && (is_turned(product) ? matrix->row_stride : matrix->column_stride) == 1;
}

// Tells whether another product has the same input.
bool has_company(const Draft& draft, NodeIndex product) {
  return std::ranges::any_of(draft.readers(*value_at(draft.node(product), 0)), [&](NodeIndex one) {
    return one != product && draft.is_there(one) && draft.node(one).op == kLinearRows;
  });
}

// Tells whether the product can be computed where `first` is.
bool may_join(const Draft& draft, NodeIndex first, NodeIndex product) {
  if (is_turned(draft.node(first)) != is_turned(draft.node(product))) return false;
  if (!draft.may_move(first, product)) return false;
  bool is_there = true;
  for_each_operand(draft.node(product), [&](ValueId id) {
    const auto maker = draft.maker(id);
    is_there &= !maker || *maker < first;
  });
  return is_there;
}

Node together(const Draft& draft, const std::vector<NodeIndex>& products) {
  ValueList weights, biases;
  Node made{"djinn::linears", {}, {}, {}};
  for (const NodeIndex i : products) {
    const Node& product = draft.node(i);
    weights.ids.emplace_back(*value_at(product, 1));
    const auto* const bias = std::get_if<ValueRef>(&product.arguments[2].value);
    biases.ids.push_back(bias != nullptr ? std::optional(bias->id) : std::nullopt);
    made.outputs.push_back(product.outputs[0]);
  }
  const Node& first = draft.node(products[0]);
  made.arguments = {first.arguments[0],
                    {"", std::move(weights)},
                    {"", std::move(biases)},
                    {"", is_turned(first)}};
  return made;
}

}  // namespace

PassReport rewrite_linears(Draft& draft) {
  PassReport report{"linears", 0, {}};
  const ConstantMatrices matrices(draft);
  std::map<ValueId, std::vector<NodeIndex>> open;  // by input: products that more may join
  const auto close = [&](const std::vector<NodeIndex>& products) {
    if (products.size() < 2) return;
    draft.fuse(products, products[0], together(draft, products));
    ++report.fired;
  };
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    if (!draft.is_there(i) || draft.node(i).op != kLinearRows) continue;
    if (!has_dense_inputs(matrices, draft.node(i))) {
      if (has_company(draft, i)) report.leave("its outputs lie side by side");
      continue;
    }
    std::vector<NodeIndex>& products = open[*value_at(draft.node(i), 0)];
    const bool has_others = !products.empty() && products.size() < kTogetherMax;
    const bool joins = has_others && may_join(draft, products[0], i);
    if (has_others && !joins) report.leave("it cannot be computed where its value's first one is");
    if (!joins) close(std::exchange(products, {}));
    products.push_back(i);
  }
  for (const auto& [input, products] : open) close(products);
  return report;
}

}  // namespace djinn::srg
