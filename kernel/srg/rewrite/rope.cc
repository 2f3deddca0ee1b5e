// SPDX-License-Identifier: Apache-2.0

// Rotary position embedding whose pairs are the halves of a head, or neighbours in it,
//
//   x * cos + cat([-x2, x1], -1) * sin, where x1 and x2 are views of x's halves
//   x * cos + (stack([-x2, x1], -1) seen as x) * sin, where they are of its even and odd elements
//
// becomes djinn::rope(x, cos, sin, whether it is the latter).
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/srg/expr.h"
#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

struct Rope {
  ValueId x = 0;
  ValueId cos = 0;
  ValueId sin = 0;
  bool interleaved = false;
  std::vector<NodeIndex> nodes;
};

struct Halves {
  View first;
  View second;
  std::vector<NodeIndex> nodes;
};

// cat([-x2, x1], -1), or stack of them.
std::optional<Halves> turned_halves(const Draft& draft, ValueId value, std::string_view op) {
  const auto joins = made_by(draft, value, op);
  if (!joins) return {};
  const Node& node = draft.node(*joins);
  const ArgumentValue* const parts = argument_at(node, 0);
  const auto* const list = parts == nullptr ? nullptr : std::get_if<ValueList>(parts);
  if (list == nullptr || list->ids.size() != 2 || !list->ids[0] || !list->ids[1]) return {};
  if (number_at(node, 1) != -1.0) return {};
  const auto negation = made_by(draft, *list->ids[0], "aten::neg");
  const auto negated = negation ? value_at(draft.node(*negation), 0) : std::nullopt;
  if (!negated) return {};
  const auto second_viewer = made_by(draft, *negated, "aten::as_strided");
  const auto first_viewer = made_by(draft, *list->ids[1], "aten::as_strided");
  if (!first_viewer || !second_viewer) return {};
  auto first = view_of(draft, *list->ids[1]), second = view_of(draft, *negated);
  if (!first || !second) return {};
  return Halves{
      *std::move(first), *std::move(second), {*joins, *negation, *first_viewer, *second_viewer}};
}

// Where there is one element alone, no step is taken.
bool step_alike(const std::vector<Expr>& sizes, const std::vector<Expr>& strides,
                const std::vector<Expr>& others) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != Expr(1) && strides[d] != others[d]) return false;
  }
  return true;
}

bool is_contiguous(const View& view) {
  const auto strides = contiguous_strides(view.sizes);
  return strides && view.offset == Expr(0) && step_alike(view.sizes, view.strides, *strides);
}

// Tells whether they are the halves of the last dimension of x, or its even and odd elements.
bool are_halves(const View& x, const Halves& halves, bool interleaved) {
  if (x.sizes.empty() || halves.first.sizes.size() != x.sizes.size()) return false;
  const size_t last = x.sizes.size() - 1;
  if (!x.sizes[last].is_constant() || x.sizes[last].constant % 2 != 0) return false;
  std::vector<Expr> sizes = x.sizes, strides = x.strides;
  sizes[last] = x.sizes[last].constant / 2;
  if (interleaved) strides[last] = x.strides[last] * 2;
  const Expr apart = interleaved ? x.strides[last] : x.strides[last] * sizes[last].constant;
  const auto is_half = [&](const View& half, const Expr& offset) {
    return half.base == x.base && half.sizes == sizes && half.offset == offset &&
           step_alike(sizes, half.strides, strides);
  };
  return is_half(halves.first, x.offset) && is_half(halves.second, x.offset + apart);
}

// What of x is turned by a quarter, if the value is that.
std::optional<Rope> turned_by(const Draft& draft, ValueId value, const View& x) {
  if (auto halves = turned_halves(draft, value, "aten::cat")) {
    if (!are_halves(x, *halves, false)) return {};
    return Rope{0, 0, 0, false, std::move(halves->nodes)};
  }
  const auto viewer = made_by(draft, value, "aten::as_strided");
  const auto whole = viewer ? view_of(draft, value) : std::nullopt;
  if (!whole || whole->sizes != x.sizes || !is_contiguous(*whole)) return {};
  auto halves = turned_halves(draft, whole->base, "aten::stack");
  if (!halves || !are_halves(x, *halves, true)) return {};
  halves->nodes.push_back(*viewer);
  return Rope{0, 0, 0, true, std::move(halves->nodes)};
}

std::optional<Rope> rope_of(const Draft& draft, NodeIndex sum) {
  if (draft.node(sum).op != "aten::add.Tensor") return {};
  const auto terms = operands(draft.node(sum));
  if (!terms) return {};
  const auto plain = made_by(draft, terms->first, "aten::mul.Tensor");
  const auto turned = made_by(draft, terms->second, "aten::mul.Tensor");
  if (!plain || !turned) return {};
  const auto with_cos = operands(draft.node(*plain)), with_sin = operands(draft.node(*turned));
  if (!with_cos || !with_sin) return {};
  const auto x = view_or_all_of(draft, with_cos->first);
  auto rope = x ? turned_by(draft, with_sin->first, *x) : std::nullopt;
  if (!rope) return {};
  rope->x = with_cos->first;
  rope->cos = with_cos->second;
  rope->sin = with_sin->second;
  rope->nodes.insert(rope->nodes.end(), {*plain, *turned, sum});
  return rope;
}

// Why a node is taken for a rotation, or a part of one, that stays as it is; null: it is none.
const char* why_left(const Draft& draft, const Node& node) {
  if (node.op == "aten::neg")
    return "what is negated is no part of a head, or turned in another form";
  const auto left = value_at(node, 0), right = value_at(node, 1);
  if (!left || !right) return nullptr;
  // x1 * cos - x2 * sin
  if (node.op == "aten::sub.Tensor" && made_by(draft, *left, "aten::mul.Tensor") &&
      made_by(draft, *right, "aten::mul.Tensor")) {
    return "its halves are turned one by one, and nothing is negated";
  }
  if (node.op == "aten::mul.Tensor" && dtype_of(draft, node.outputs[0]) == DType::kComplex64)
    return "it is turned as complex numbers";
  return nullptr;
}

}  // namespace

PassReport rewrite_ropes(Draft& draft) {
  PassReport report{"rope", 0, {}};
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    if (!draft.is_there(i)) continue;
    const auto rope = rope_of(draft, i);
    if (!rope) continue;
    if (!draft.may_move(std::ranges::min(rope->nodes), i)) {
      report.leave("something is written amid it");
      continue;
    }
    draft.fuse(rope->nodes, i,
               {"djinn::rope",
                {{"", ValueRef{rope->x}},
                 {"", ValueRef{rope->cos}},
                 {"", ValueRef{rope->sin}},
                 {"", rope->interleaved}},
                draft.node(i).outputs,
                {}});
    ++report.fired;
  }
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    if (!draft.is_there(i)) continue;
    if (const char* const why = why_left(draft, draft.node(i))) report.leave(why);
  }
  return report;
}

}  // namespace djinn::srg
