// SPDX-License-Identifier: Apache-2.0

// A tensor in another dtype, as captures have it: zeros, a view of them all, and a copy into it,
//
//   z = aten::zeros([n], dtype=t);  v = aten::as_strided(z, sizes, contiguous strides, 0)
//   aten::copy_(v, x)
//
// become v = aten::_to_copy(x, dtype=t, memory_format=contiguous_format), which writes no argument,
// fills nothing twice, and lies as v does. Nothing may be in z that v does not show; other views of
// z, which are all taken once it is filled, become views of v. Where x has one dimension, z may be
// v itself.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

constexpr std::string_view kZeros = "aten::zeros";

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

struct FilledZeros {
  std::vector<NodeIndex> nodes;
  std::vector<NodeIndex> viewers;  // of zeros, besides
  ValueId zeros = 0;
  ValueId from = 0;
  ValueId to = 0;
  std::vector<Expr> sizes;
  DType dtype = DType::kInvalid;
};

// A copy of it elsewhere writes there.
bool writes(const Draft& draft, NodeIndex reader, ValueId target) {
  const Node& node = draft.node(reader);
  const bool copies_it = node.op == "aten::copy_" && value_at(node, 0) != target;
  return draft.is_writer(reader) && !copies_it;
}

// The readers of the copy's target come after it, and do not write it.
bool is_only_read_after(const Draft& draft, ValueId target, NodeIndex copy) {
  return std::ranges::all_of(draft.readers(target), [&](NodeIndex reader) {
    return reader == copy || (reader > copy && !writes(draft, reader, target));
  });
}

// What looks at the zeros but for the view that is filled: views that are taken after that. Nothing
// where something else does.
std::optional<std::vector<NodeIndex>> viewers_after(const Draft& draft, ValueId zeros,
                                                    NodeIndex filled, NodeIndex copy) {
  std::vector<NodeIndex> viewers;
  for (const NodeIndex reader : draft.readers(zeros)) {
    if (reader == filled || !draft.is_there(reader)) continue;
    if (reader < copy || draft.node(reader).op != "aten::as_strided") return {};
    viewers.push_back(reader);
  }
  const bool is_output = draft.uses(zeros) != viewers.size() + 1;
  return is_output ? std::nullopt : std::optional(std::move(viewers));
}

std::optional<FilledZeros> cast_of(const Draft& draft, NodeIndex copy) {
  const Node& node = draft.node(copy);
  if (node.op != "aten::copy_" || node.outputs.size() != 1 || draft.uses(node.outputs[0]) > 0) {
    return {};
  }
  const auto to = value_at(node, 0), from = value_at(node, 1);
  if (!to || !from || *to == *from) return {};
  const auto view = view_of(draft, *to);
  FilledZeros cast{{copy}, {}, view ? view->base : *to, *from, *to, {}, DType::kInvalid};
  const auto zeros = draft.maker(cast.zeros);
  if (!zeros || draft.node(*zeros).op != kZeros) return {};
  cast.nodes.push_back(*zeros);
  if (view) {
    const auto shown = count_of_contiguous(*view);
    if (!shown || count_of_zeros(draft.node(*zeros)) != shown) return {};
    const NodeIndex viewer = *draft.maker(*to);
    auto viewers = viewers_after(draft, cast.zeros, viewer, copy);
    if (!viewers) return {};
    cast.viewers = *std::move(viewers);
    cast.nodes.push_back(viewer);
    cast.sizes = view->sizes;
  } else if (const ExprList* const sizes = list_at(draft.node(*zeros), 0)) {
    cast.sizes = sizes->items;
  }
  if (shape_of(draft, *from) != cast.sizes || !is_only_read_after(draft, *to, copy)) return {};
  const ArgumentValue* const dtype = argument_named(draft.node(*zeros), "dtype");
  if (dtype == nullptr || !std::holds_alternative<DType>(*dtype)) return {};
  cast.dtype = std::get<DType>(*dtype);
  return cast;
}

// Gives why a copy into zeros is none; nothing where it goes elsewhere.
std::string_view why_not(const Draft& draft, NodeIndex copy) {
  const Node& node = draft.node(copy);
  const auto to = value_at(node, 0);
  if (node.op != "aten::copy_" || !to) return {};
  const auto view = view_of(draft, *to);
  const ValueId filled = view ? view->base : *to;
  const auto zeros = draft.maker(filled);
  if (!zeros || draft.node(*zeros).op != kZeros) return {};
  const auto shown = view ? count_of_contiguous(*view) : std::nullopt;
  if (view && (!shown || count_of_zeros(draft.node(*zeros)) != shown)) {
    return "it lies otherwise than a copy would";
  }
  return "it takes another size, or what it fills is seen otherwise";
}

}  // namespace

PassReport rewrite_casts(Draft& draft) {
  PassReport report{"casts", 0, {}};
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    if (!draft.is_there(i)) continue;
    const auto cast = cast_of(draft, i);
    if (!cast) {
      if (const auto reason = why_not(draft, i); !reason.empty()) report.leave(reason);
      continue;
    }
    draft.fuse(cast->nodes, i,
               {"aten::_to_copy",
                {{"", ValueRef{cast->from}},
                 {"dtype", cast->dtype},
                 {"memory_format", std::string("contiguous_format")}},
                {cast->to},
                {}});
    for (const NodeIndex viewer : cast->viewers) {
      draft.read_instead(viewer, cast->zeros, cast->to);
    }
    draft.note_contiguous(cast->to, cast->sizes);
    ++report.fired;
  }
  return report;
}

}  // namespace djinn::srg
