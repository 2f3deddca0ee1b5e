// SPDX-License-Identifier: Apache-2.0

// A tensor in another dtype, as captures have it: zeros, a view of them all, and a copy into it,
//
//   z = aten::zeros([n], dtype=t);  v = aten::as_strided(z, sizes, contiguous strides, 0)
//   aten::copy_(v, x)
//
// become v = aten::_to_copy(x, dtype=t, memory_format=contiguous_format), which writes no argument,
// fills nothing twice, and lies as v does. Views of z would see the copy too, so there must be
// none, and nothing in it that v does not show.
#include <algorithm>
#include <optional>
#include <string>

#include "kernel/srg/expr.h"
#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

// Nothing where it is no expression, as a product of symbols is none.
std::optional<Expr> product(const Expr& one, const Expr& other) {
  if (other.is_constant()) return one * other.constant;
  return one.is_constant() ? std::optional(other * one.constant) : std::nullopt;
}

// How many elements the view shows, if they are the first ones of a storage, in order.
std::optional<Expr> count_of_contiguous(const View& view) {
  std::optional<Expr> next = 1;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    if (view.sizes[d] == Expr(1)) continue;
    if (!next || view.strides[d] != *next) return {};
    next = product(*next, view.sizes[d]);
  }
  return view.offset == Expr(0) ? next : std::nullopt;
}

// Of the node aten::zeros.
std::optional<Expr> count_of_zeros(const Node& zeros) {
  const ExprList* const sizes = list_at(zeros, 0);
  if (sizes == nullptr) return {};
  std::optional<Expr> count = 1;
  for (const Expr& size : sizes->items) {
    if (count) count = product(*count, size);
  }
  return count;
}

std::optional<std::vector<Expr>> sizes_of(const Draft& draft, ValueId value) {
  if (auto view = view_of(draft, value)) return std::move(view->sizes);
  const Value& claimed = draft.value(value);
  const bool is_known = claimed.storage != kLocalStorage || claimed.claims_sizes;
  return is_known ? std::optional(claimed.sizes) : std::nullopt;
}

struct FilledZeros {
  NodeIndex zeros = 0;
  NodeIndex view = 0;
  ValueId from = 0;
  ValueId to = 0;
  DType dtype = DType::kInvalid;
};

// The readers of the copy's target come after it, and only look at its elements.
bool is_only_read_after(const Draft& draft, ValueId target, NodeIndex copy) {
  return std::ranges::all_of(draft.readers(target), [&](NodeIndex reader) {
    return reader == copy || (reader > copy && draft.node(reader).op != "aten::as_strided" &&
                              !draft.is_writer(reader));
  });
}

std::optional<FilledZeros> cast_of(const Draft& draft, NodeIndex copy) {
  const Node& node = draft.node(copy);
  if (node.op != "aten::copy_" || node.outputs.size() != 1 || draft.uses(node.outputs[0]) > 0) {
    return {};
  }
  const auto to = value_at(node, 0), from = value_at(node, 1);
  if (!to || !from || *to == *from) return {};
  const auto view = view_of(draft, *to);
  const auto viewer = draft.maker(*to);
  const auto shown = view ? count_of_contiguous(*view) : std::nullopt;
  if (!shown || sizes_of(draft, *from) != view->sizes) return {};
  const auto zeros = made_by(draft, view->base, "aten::zeros");
  if (!zeros || count_of_zeros(draft.node(*zeros)) != shown) return {};
  if (!is_only_read_after(draft, *to, copy)) return {};
  const ArgumentValue* const dtype = argument_named(draft.node(*zeros), "dtype");
  if (dtype == nullptr || !std::holds_alternative<DType>(*dtype)) return {};
  return FilledZeros{*zeros, *viewer, *from, *to, std::get<DType>(*dtype)};
}

}  // namespace

PassReport rewrite_casts(Draft& draft) {
  PassReport report{"casts", 0, {}};
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    const auto cast = cast_of(draft, i);
    if (!cast) continue;
    draft.fuse({{cast->zeros, cast->view, i}}, i,
               {"aten::_to_copy",
                {{"", ValueRef{cast->from}},
                 {"dtype", cast->dtype},
                 {"memory_format", std::string("contiguous_format")}},
                {cast->to},
                {}});
    ++report.fired;
  }
  return report;
}

}  // namespace djinn::srg
