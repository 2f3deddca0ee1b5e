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

// A view of a weight from its first element on, or from another one.
ShownForm shown(const FormedWeight& weight, ValueId base, const std::vector<Expr>& sizes,
                const ConstantMatrix& view, const Expr& offset) {
  const bool is_first = offset == Expr(0);
  const auto has = [&](int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    return sizes[0] == Expr(rows) && sizes[1] == Expr(columns) && view.row_stride == row_stride &&
           view.column_stride == column_stride;
  };
  const bool in_order = has(weight.rows, weight.columns, weight.columns, 1);
  const bool is_around = has(weight.columns, weight.rows, 1, weight.columns);
  return {base, false, is_first && (in_order || is_around), is_around && !in_order};
}

}  // namespace

ConstantMatrices::ConstantMatrices(const Draft& draft) : matrices_(draft.graph().values.size()) {
  const Graph& graph = draft.graph();
  for (ValueId id = 0; id < graph.values.size(); ++id) add_view(draft, id);
  for (const Node& node : graph.nodes) add_result(draft, node);
}

std::optional<ConstantMatrix> ConstantMatrices::find(ValueId value) const {
  DJINN_ASSERT(value < matrices_.size());
  return matrices_[value];
}

void ConstantMatrices::add_view(const Draft& draft, ValueId value) {
  const Graph& graph = draft.graph();
  const Value& view = graph.values[value];
  if (view.storage == kLocalStorage) return;
  if (graph.storages[view.storage].kind != StorageKind::kWeight) return;
  const bool strided = !view.strides.empty();
  if (!are_two_constants(view.sizes) || !view.offset.is_constant()) return;
  if (strided && !are_two_constants(view.strides)) return;
  matrices_[value] = {view.dtype,
                      strided ? view.strides[0].constant : view.sizes[1].constant,
                      strided ? view.strides[1].constant : 1,
                      {}};
  const FormedWeight* const weight = draft.formed(view.storage);
  if (weight == nullptr) return;
  ShownForm form = shown(*weight, value, view.sizes, *matrices_[value], view.offset);
  form.is_whole &= !draft.maker(value) && weight->dtype == view.dtype;  // it is its own base
  form.base_is_turned = std::exchange(form.is_turned, false);
  matrices_[value]->form = form;
}

void ConstantMatrices::add_result(const Draft& draft, const Node& node) {
  if (node.arguments.empty() || node.outputs.size() != 1) return;
  const auto* const of = std::get_if<ValueRef>(&node.arguments[0].value);
  if (of == nullptr || !matrices_[of->id]) return;
  ConstantMatrix seen = *matrices_[of->id];
  if (node.op == "aten::t" && node.arguments.size() == 1) {
    std::swap(seen.row_stride, seen.column_stride);
    if (seen.form) seen.form->is_turned = !seen.form->is_turned;
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
  ConstantMatrix view{seen.dtype, strides->items[0].constant, strides->items[1].constant, {}};
  if (seen.form && seen.form->is_whole) {
    const StorageIndex storage = draft.value(seen.form->base).storage;
    view.form = shown(*draft.formed(storage), seen.form->base, sizes->items, view, *offset);
    view.form->base_is_turned = seen.form->base_is_turned;
    view.form->is_turned ^= seen.form->base_is_turned;
  } else {
    view.form = seen.form;
  }
  matrices_[node.outputs[0]] = view;
}

}  // namespace djinn::srg
