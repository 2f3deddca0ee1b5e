// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/attend_sinks.h"

#include <algorithm>
#include <string_view>
#include <variant>

#include "kernel/srg/expr.h"
#include "kernel/srg/rewrite/match.h"

namespace djinn::srg {
namespace {

using Sizes = std::vector<Expr>;

bool is_the_last(const Draft& draft, ValueId value, const Node& node, size_t argument) {
  const auto dimension = number_at(node, argument);
  const auto sizes = shape_of(draft, value);
  return dimension == -1.0 || (sizes && dimension == static_cast<double>(sizes->size()) - 1);
}

bool is_true(const Node& node, size_t argument, bool wanted) {
  const ArgumentValue* const value = argument_at(node, argument);
  return value != nullptr && *value == ArgumentValue(wanted);
}

// The node is max.dim(of, -1, true), and its first result, which one node reads, is the value.
bool is_greatest(const Draft& draft, NodeIndex index, ValueId value, ValueId of) {
  const Node& node = draft.node(index);
  return node.op == "aten::max.dim" && node.outputs.size() == 2 && node.outputs[0] == value &&
         draft.uses(node.outputs[1]) == 0 && value_at(node, 0) == of &&
         is_the_last(draft, of, node, 1) && is_true(node, 2, true);
}

// With a last dimension of 1, or without it.
bool is_one_of_each(const Sizes& sizes, const Sizes& scores) {
  return std::equal(sizes.begin(), sizes.end() - 1, scores.begin(), scores.end() - 1) &&
         sizes.back() == Expr(1);
}

bool is_broadcast(const Expr& size, const Expr& to) {
  return size == to || size == Expr(1);
}

// Steps back over casts, and over views that show all in order with a last dimension of 1 more or
// none, each of which nobody else reads.
ValueId behind_casts(const Draft& draft, ValueId value, std::vector<NodeIndex>& nodes) {
  while (const auto maker = draft.lone_maker(value)) {
    const Node& node = draft.node(*maker);
    const auto view = view_of(draft, value);
    ValueId before = 0;
    if (const auto to = dtype_of_cast(node); to && has_kernels(*to)) {
      before = *value_at(node, 0);
    } else if (view && view->base != value) {
      const auto base = shape_of(draft, view->base);
      Sizes longer = base.value_or(Sizes());
      longer.emplace_back(1);
      const auto strides = contiguous_strides(view->sizes);
      const bool is_all = base && view->offset == Expr(0) && strides == view->strides &&
                          (view->sizes == *base || view->sizes == longer);
      if (!is_all) break;
      before = view->base;
    } else {
      break;
    }
    nodes.push_back(*maker);
    value = before;
  }
  return value;
}

// The node that makes what is behind casts, if it is that operator's and nobody else reads that.
const Node* made_behind(const Draft& draft, ValueId value, std::string_view op,
                        std::vector<NodeIndex>& nodes) {
  const ValueId made = behind_casts(draft, value, nodes);
  const auto maker = draft.lone_maker(made);
  if (!maker || draft.node(*maker).op != op) return nullptr;
  nodes.push_back(*maker);
  return &draft.node(*maker);
}

}  // namespace

std::optional<Sinks> sinks_among(const Draft& draft, ValueId joined) {
  Sinks sinks;
  uint32_t uses = 1;
  auto maker = draft.maker(joined);
  if (maker && draft.uses(joined) == 1 && draft.node(*maker).op == "aten::sub.Tensor") {
    const auto pair = operands(draft.node(*maker));
    const auto greatest = pair ? draft.lone_maker(pair->second) : std::nullopt;
    if (!greatest || !is_greatest(draft, *greatest, pair->second, pair->first)) return {};
    sinks.nodes = {*maker, *greatest};
    joined = pair->first;
    uses = 2;
    maker = draft.maker(joined);
  }
  if (!maker || draft.uses(joined) != uses) return {};
  const Node& cat = draft.node(*maker);
  const ArgumentValue* const first = argument_at(cat, 0);
  const auto* const list = first == nullptr ? nullptr : std::get_if<ValueList>(first);
  if (cat.op != "aten::cat" || list == nullptr || list->ids.size() != 2) return {};
  if (!list->ids[0] || !list->ids[1] || !is_the_last(draft, joined, cat, 1)) return {};
  sinks.nodes.push_back(*maker);
  sinks.scores = *list->ids[0];
  sinks.value = *list->ids[1];
  const auto scores = shape_of(draft, sinks.scores), sizes = shape_of(draft, sinks.value);
  const bool fits = scores && sizes && scores->size() == 4 && sizes->size() == 4 &&
                    is_one_of_each(*sizes, *scores) && has_kernels(dtype_of(draft, sinks.value));
  return fits ? std::optional(std::move(sinks)) : std::nullopt;
}

std::optional<Sinks> sinks_behind(const Draft& draft, ValueId mixed) {
  if (draft.uses(mixed) != 1) return {};
  const auto reader = std::ranges::find_if(draft.readers(mixed), [&](NodeIndex index) {
    return draft.is_there(index) && draft.node(index).op == "aten::mul.Tensor";
  });
  if (reader == draft.readers(mixed).end()) return {};
  const Node& mul = draft.node(*reader);
  const auto pair = operands(mul);
  if (!pair || (pair->first != mixed && pair->second != mixed) || mul.outputs.size() != 1) {
    return {};
  }
  const ValueId factor = pair->first == mixed ? pair->second : pair->first;
  const auto sizes = shape_of(draft, mixed), of_factor = shape_of(draft, factor);
  if (!sizes || !of_factor || of_factor->size() != 4 || sizes->size() != 4) return {};
  if (!is_one_of_each(*of_factor, *sizes)) return {};
  if (dtype_of(draft, factor) != dtype_of(draft, mixed)) return {};
  Sinks sinks;
  sinks.has_other_reader = true;
  const Node* const sigmoid = made_behind(draft, factor, "aten::sigmoid", sinks.nodes);
  const auto difference = sigmoid != nullptr ? value_at(*sigmoid, 0) : std::nullopt;
  if (!difference) return {};
  const Node* const sub = made_behind(draft, *difference, "aten::sub.Tensor", sinks.nodes);
  const auto both = sub != nullptr ? operands(*sub) : std::nullopt;
  if (!both) return {};
  const Node* const all = made_behind(draft, both->first, "aten::logsumexp", sinks.nodes);
  const ExprList* const over = all != nullptr ? list_at(*all, 1) : nullptr;
  if (over == nullptr || over->items != Sizes{Expr(-1)} || !is_true(*all, 2, false)) return {};
  sinks.value = both->second;
  sinks.scores = *value_at(*all, 0);
  const auto of_sinks = shape_of(draft, sinks.value), scores = shape_of(draft, sinks.scores);
  const bool fits = of_sinks && scores && scores->size() == 4 && of_sinks->size() == 3 &&
                    std::equal(of_sinks->begin(), of_sinks->end(), scores->begin(), is_broadcast) &&
                    has_kernels(dtype_of(draft, sinks.value));
  if (!fits) return {};
  sinks.nodes.push_back(*reader);
  return sinks;
}

std::optional<ValueId> seen_but_for_the_last(const Draft& draft, ValueId value) {
  const auto view = view_of(draft, value);
  const auto base = view ? shape_of(draft, view->base) : std::nullopt;
  if (!base || view->offset != Expr(0) || view->sizes.size() != base->size()) return {};
  if (base->empty() || contiguous_strides(*base) != view->strides) return {};
  Sizes wanted = *base;
  wanted.back() = wanted.back() - Expr(1);
  return view->sizes == wanted ? std::optional(view->base) : std::nullopt;
}

}  // namespace djinn::srg
