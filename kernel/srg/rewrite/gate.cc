// SPDX-License-Identifier: Apache-2.0

// An activation and the product behind it,
//
//   aten::silu(x) * y, aten::gelu(x) * y, aten::gelu(x, approximate="tanh") * y
//
// become djinn::gate(x, y, activation, whether y is the first factor). An activation without such a
// product, of floats (PyTorch has an error for others), and the eight nodes that compose gelu with
// tanh,
//
//   (x * 0.5) * (1 + tanh((x + x ^ 3 * 0.044715) * sqrt(2 / pi)))
//
// become djinn::gate(x, none, activation, false).
#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

constexpr const char* kSilu = "silu";
constexpr const char* kGelu = "gelu";
constexpr const char* kGeluTanh = "gelu_tanh";

struct Gated {
  ValueId x = 0;
  ArgumentValue factor = None{};
  const char* activation = kSilu;
  bool factor_first = false;
  std::vector<NodeIndex> nodes;
};

// Gives the activation that the node is, without a factor.
std::optional<Gated> activation_at(const Draft& draft, NodeIndex index) {
  const Node& node = draft.node(index);
  const auto x = value_at(node, 0);
  if (!x) return {};
  if (node.op == "aten::silu") return Gated{*x, None{}, kSilu, false, {index}};
  if (node.op != "aten::gelu") return {};
  const ArgumentValue* const given = argument_named(node, "approximate");
  const auto* const approximate = given != nullptr ? std::get_if<std::string>(given) : nullptr;
  if (approximate == nullptr && node.arguments.size() > 1) return {};
  const bool has_tanh = approximate != nullptr && *approximate == "tanh";
  // PyTorch has an error for another word.
  if (approximate != nullptr && !has_tanh && *approximate != "none") return {};
  return Gated{*x, None{}, has_tanh ? kGeluTanh : kGelu, false, {index}};
}

// The same of the one that makes the value, for its one reader.
std::optional<Gated> activation_of(const Draft& draft, ValueId value) {
  const auto maker = draft.lone_maker(value);
  return maker ? activation_at(draft, *maker) : std::nullopt;
}

// Follows a node of that operator, with that number beside, to its other operand.
class Chain {
 public:
  Chain(const Draft& draft, std::vector<NodeIndex>& nodes) : draft_(draft), nodes_(nodes) {}

  std::optional<ValueId> through(std::optional<ValueId> value, std::string_view op, double number) {
    const auto node = value ? made_by(draft_, *value, op) : std::nullopt;
    if (!node) return {};
    const auto given = number_at(draft_.node(*node), 1);
    if (!given || !has_two_arguments(draft_.node(*node))) return {};
    if (std::abs(*given - number) > std::abs(number) * 1e-6) return {};
    nodes_.push_back(*node);
    return value_at(draft_.node(*node), 0);
  }
  std::optional<ValueId> through(std::optional<ValueId> value, std::string_view op) {
    const auto node = value ? made_by(draft_, *value, op) : std::nullopt;
    if (!node || draft_.node(*node).arguments.size() != 1) return {};
    nodes_.push_back(*node);
    return value_at(draft_.node(*node), 0);
  }

 private:
  const Draft& draft_;
  std::vector<NodeIndex>& nodes_;
};

// The operands of (x * 0.5) * (1 + tanh(...)).
std::optional<Gated> composed_gelu(const Draft& draft, ValueId half, ValueId one_more) {
  const double root = std::sqrt(2.0 / std::numbers::pi);
  Gated gated{0, None{}, kGeluTanh, false, {}};
  Chain chain(draft, gated.nodes);
  const auto x = chain.through(half, "aten::mul.Tensor", 0.5);
  auto inner = chain.through(one_more, "aten::add.Tensor", 1);
  inner = chain.through(inner, "aten::tanh");
  inner = chain.through(inner, "aten::mul.Tensor", root);
  const auto sum = inner ? made_by(draft, *inner, "aten::add.Tensor") : std::nullopt;
  const auto pair = sum ? operands(draft.node(*sum)) : std::nullopt;
  if (!x || !pair || pair->first != *x) return {};
  gated.nodes.push_back(*sum);
  const auto cube = chain.through(pair->second, "aten::mul.Tensor", 0.044715);
  if (chain.through(cube, "aten::pow.Tensor_Scalar", 3) != x) return {};
  if (!has_kernels(dtype_of(draft, *x))) return {};
  gated.x = *x;
  return gated;
}

std::optional<Gated> gated_by(const Draft& draft, NodeIndex product) {
  if (draft.node(product).op != "aten::mul.Tensor") return {};
  const auto pair = operands(draft.node(product));
  if (!pair || pair->first == pair->second) return {};
  for (const auto& [one, other] : {*pair, Pair{pair->second, pair->first}}) {
    auto gated = activation_of(draft, one);
    if (gated) {
      gated->factor = ValueRef{other};
      gated->factor_first = other == pair->first;
    } else {
      gated = composed_gelu(draft, one, other);
    }
    if (!gated) continue;
    gated->nodes.push_back(product);
    return gated;
  }
  return {};
}

// Of a node that is left: gives why, or nothing where it is no activation.
std::string_view why_no_gate(const Node& node) {
  if (node.op == "aten::silu" || node.op == "aten::gelu")
    return "its dtype is not known, or has no kernel";
  return node.op == "aten::tanh" ? "it is no part of gelu" : "";
}

void fuse_gate(Draft& draft, PassReport& report, Gated gated, NodeIndex at) {
  if (!draft.may_move(std::ranges::min(gated.nodes), at)) {
    report.leave("something is written amid it");
    return;
  }
  draft.fuse(gated.nodes, at,
             {"djinn::gate",
              {{"", ValueRef{gated.x}},
               {"", std::move(gated.factor)},
               {"", std::string(gated.activation)},
               {"", gated.factor_first}},
              draft.node(at).outputs,
              {}});
  ++report.fired;
}

}  // namespace

PassReport rewrite_gates(Draft& draft) {
  PassReport report{"gated", 0, {}};
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    auto gated = draft.is_there(i) ? gated_by(draft, i) : std::nullopt;
    if (gated) fuse_gate(draft, report, std::move(*gated), i);
  }
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    auto alone = draft.is_there(i) ? activation_at(draft, i) : std::nullopt;
    if (alone && has_kernels(dtype_of(draft, alone->x)))
      fuse_gate(draft, report, std::move(*alone), i);
  }
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    const std::string_view reason = draft.is_there(i) ? why_no_gate(draft.node(i)) : "";
    if (!reason.empty()) report.leave(reason);
  }
  return report;
}

}  // namespace djinn::srg
