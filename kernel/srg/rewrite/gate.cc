// SPDX-License-Identifier: Apache-2.0

// An activation and the product behind it,
//
//   aten::silu(x) * y, aten::gelu(x, approximate="tanh") * y
//
// become djinn::gate(x, y, activation, whether y is the first factor), and the eight nodes that
// compose gelu with tanh,
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
constexpr const char* kGeluTanh = "gelu_tanh";

struct Gated {
  ValueId x = 0;
  ArgumentValue factor = None{};
  const char* activation = kSilu;
  bool factor_first = false;
  std::vector<NodeIndex> nodes;
};

// Gives the activation that makes the value, without a factor.
std::optional<Gated> activation_of(const Draft& draft, ValueId value) {
  if (const auto silu = made_by(draft, value, "aten::silu")) {
    if (const auto x = value_at(draft.node(*silu), 0))
      return Gated{*x, None{}, kSilu, false, {*silu}};
  }
  const auto gelu = made_by(draft, value, "aten::gelu");
  if (!gelu) return {};
  const ArgumentValue* const approximate = argument_named(draft.node(*gelu), "approximate");
  const auto x = value_at(draft.node(*gelu), 0);
  if (!x || approximate == nullptr || *approximate != ArgumentValue(std::string("tanh"))) return {};
  return Gated{*x, None{}, kGeluTanh, false, {*gelu}};
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
  if (node.op == "aten::silu") return "no product alone is behind it";
  if (node.op == "aten::tanh") return "it is no part of gelu";
  if (node.op != "aten::gelu") return {};
  const ArgumentValue* const approximate = argument_named(node, "approximate");
  const bool has_tanh =
      approximate != nullptr && *approximate == ArgumentValue(std::string("tanh"));
  return has_tanh ? "no product alone is behind it" : "it is gelu without tanh";
}

}  // namespace

PassReport rewrite_gates(Draft& draft) {
  PassReport report{"gated", 0, {}};
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    if (!draft.is_there(i)) continue;
    auto gated = gated_by(draft, i);
    if (!gated) continue;
    if (!draft.may_move(std::ranges::min(gated->nodes), i)) {
      report.leave("something is written amid it");
      continue;
    }
    draft.fuse(gated->nodes, i,
               {"djinn::gate",
                {{"", ValueRef{gated->x}},
                 {"", std::move(gated->factor)},
                 {"", std::string(gated->activation)},
                 {"", gated->factor_first}},
                draft.node(i).outputs,
                {}});
    ++report.fired;
  }
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    const std::string_view reason = draft.is_there(i) ? why_no_gate(draft.node(i)) : "";
    if (!reason.empty()) report.leave(reason);
  }
  return report;
}

}  // namespace djinn::srg
