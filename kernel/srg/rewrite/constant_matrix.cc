// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/constant_matrix.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/srg/rewrite/match.h"

namespace djinn::srg {
namespace {

bool are_two_constants(const std::vector<Expr>& items) {
  return items.size() == 2 && std::ranges::all_of(items, &Expr::is_constant);
}

}  // namespace

ConstantMatrices::ConstantMatrices(const Graph& graph) : matrices_(graph.values.size()) {
  for (ValueId id = 0; id < graph.values.size(); ++id) add_view(graph, id);
  for (const Node& node : graph.nodes) add_result(node);
}

std::optional<ConstantMatrix> ConstantMatrices::find(ValueId value) const {
  DJINN_ASSERT(value < matrices_.size());
  return matrices_[value];
}

void ConstantMatrices::add_view(const Graph& graph, ValueId value) {
  const Value& view = graph.values[value];
  if (view.storage == kLocalStorage) return;
  if (graph.storages[view.storage].kind != StorageKind::kWeight) return;
  const bool strided = !view.strides.empty();
  if (!are_two_constants(view.sizes) || !view.offset.is_constant()) return;
  if (strided && !are_two_constants(view.strides)) return;
  matrices_[value] = {view.dtype, strided ? view.strides[0].constant : view.sizes[1].constant,
                      strided ? view.strides[1].constant : 1};
}

void ConstantMatrices::add_result(const Node& node) {
  if (node.arguments.empty() || node.outputs.size() != 1) return;
  const auto* const of = std::get_if<ValueRef>(&node.arguments[0].value);
  if (of == nullptr || !matrices_[of->id]) return;
  ConstantMatrix seen = *matrices_[of->id];
  if (node.op == "aten::t" && node.arguments.size() == 1) {
    std::swap(seen.row_stride, seen.column_stride);
    matrices_[node.outputs[0]] = seen;
    return;
  }
  // aten::as_strided(self, size, stride, storage_offset)
  const ExprList* const sizes = list_at(node, 1);
  const ExprList* const strides = list_at(node, 2);
  if (node.op != "aten::as_strided" || node.arguments.size() != 4) return;
  const auto* const offset = std::get_if<Expr>(&node.arguments[3].value);
  if (sizes == nullptr || strides == nullptr || offset == nullptr) return;
  if (!node.arguments[3].name.empty() || !offset->is_constant()) return;
  if (!are_two_constants(sizes->items) || !are_two_constants(strides->items)) return;
  matrices_[node.outputs[0]] = {seen.dtype, strides->items[0].constant, strides->items[1].constant};
}

}  // namespace djinn::srg
