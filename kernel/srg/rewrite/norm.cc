// SPDX-License-Identifier: Apache-2.0

// The root mean square norm, as models compose it,
//
//   h = x in float32;  n = h * rsqrt(mean(h ^ 2, over the last dimension) + epsilon)
//   n in x's dtype, weight * (n in x's dtype), (n * weight) in x's dtype, or (n * (weight + 1)) in
//   x's dtype, the weight in the latter two perhaps in float32
//
// becomes djinn::rms_norm(x, weight or none, epsilon, whether the weight is counted from 1 on,
// whether the result is contiguous however x lies), which rounds once. Casts to the dtype that a
// value has already are left out by models.
//
// The layer norm, aten::layer_norm over the last dimension, becomes djinn::layer_norm(x, weight or
// none, bias or none, epsilon).
#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

struct Norm {
  ValueId x = 0;
  std::optional<ValueId> weight;
  double epsilon = 0;
  bool from_one = false;
  bool is_widened = false;   // h is x in float32, and not x itself
  bool is_narrowed = false;  // the result, or n, is cast
  bool is_cast = false;      // the result is
  bool is_contiguous = false;
  std::vector<NodeIndex> nodes;
};

bool is_vector_of_weights(const Draft& draft, ValueId id) {
  const Value& value = draft.value(id);
  return value.storage != kLocalStorage && value.sizes.size() == 1 && value.strides.empty() &&
         draft.graph().storages[value.storage].kind == StorageKind::kWeight;
}

// What a cast was made of, and the cast; or the value itself. Others may use the value.
struct Uncast {
  ValueId value = 0;
  std::optional<NodeIndex> cast;
  bool is_contiguous = false;
};
Uncast without_cast(const Draft& draft, ValueId value, DType dtype) {
  const auto maker = draft.maker(value);
  const auto cast = maker ? cast_to(draft.node(*maker), dtype) : std::nullopt;
  return cast ? Uncast{cast->from, maker, cast->is_contiguous} : Uncast{value, {}, false};
}

// mean(h ^ 2) + epsilon, under the root.
struct MeanSquare {
  ValueId of = 0;
  double epsilon = 0;
};

std::optional<MeanSquare> mean_square(const Draft& draft, ValueId value,
                                      std::vector<NodeIndex>& nodes) {
  const auto add = made_by(draft, value, "aten::add.Tensor");
  if (!add || !has_two_arguments(draft.node(*add))) return {};
  const auto mean_value = value_at(draft.node(*add), 0);
  const auto epsilon = number_at(draft.node(*add), 1);
  if (!mean_value || !epsilon) return {};
  const auto mean = made_by(draft, *mean_value, "aten::mean.dim");
  if (!mean || draft.node(*mean).arguments.size() != 3) return {};
  const ExprList* const dimensions = list_at(draft.node(*mean), 1);
  const ArgumentValue* const keeps = argument_at(draft.node(*mean), 2);
  if (dimensions == nullptr || dimensions->items != std::vector<Expr>{Expr(-1)}) return {};
  if (keeps == nullptr || *keeps != ArgumentValue(true)) return {};
  const auto power_value = value_at(draft.node(*mean), 0);
  const auto power =
      power_value ? made_by(draft, *power_value, "aten::pow.Tensor_Scalar") : std::nullopt;
  const auto of = power ? operand_beside(draft.node(*power), 2) : std::nullopt;
  if (!of) return {};
  nodes.insert(nodes.end(), {*add, *mean, *power});
  return MeanSquare{*of, *epsilon};
}

// h * rsqrt(...), which the node is: x and epsilon.
std::optional<Norm> normed_at(const Draft& draft, NodeIndex product) {
  if (draft.node(product).op != "aten::mul.Tensor") return {};
  const auto pair = operands(draft.node(product));
  if (!pair) return {};
  for (const auto& [h, root_value] : {*pair, Pair{pair->second, pair->first}}) {
    const auto root = made_by(draft, root_value, "aten::rsqrt");
    const auto under = root ? value_at(draft.node(*root), 0) : std::nullopt;
    Norm norm;
    norm.nodes = {product};
    const auto square = under ? mean_square(draft, *under, norm.nodes) : std::nullopt;
    if (!square || square->of != h) continue;
    norm.nodes.push_back(*root);
    norm.epsilon = square->epsilon;
    norm.x = h;
    const Uncast x = without_cast(draft, h, DType::kFloat32);
    if (x.cast && draft.uses(h) == 2) {  // nobody else needs the float32 of x
      norm.x = x.value;
      norm.is_widened = true;
      norm.is_contiguous = x.is_contiguous;
      norm.nodes.push_back(*x.cast);
    }
    return norm;
  }
  return {};
}

// The same, made for one reader.
std::optional<Norm> normed(const Draft& draft, ValueId value) {
  const auto product = draft.lone_maker(value);
  return product ? normed_at(draft, *product) : std::nullopt;
}

// n in x's dtype, which the node is.
std::optional<Norm> bare_norm(const Draft& draft, NodeIndex last) {
  if (auto norm = normed_at(draft, last)) return norm;
  const auto from =
      draft.node(last).op == "aten::_to_copy" ? value_at(draft.node(last), 0) : std::nullopt;
  auto norm = from ? normed(draft, *from) : std::nullopt;
  if (!norm) return {};
  norm->is_cast = norm->is_narrowed = true;
  norm->nodes.push_back(last);
  return norm;
}

// weight * (n in x's dtype), whose product is the node.
std::optional<Norm> plain_norm(const Draft& draft, NodeIndex product) {
  if (draft.node(product).op != "aten::mul.Tensor") return {};
  const auto pair = operands(draft.node(product));
  if (!pair) return {};
  for (const auto& [weight, factor] : {*pair, Pair{pair->second, pair->first}}) {
    if (!is_vector_of_weights(draft, weight) || draft.uses(factor) != 1) continue;
    const Uncast n = without_cast(draft, factor, draft.value(weight).dtype);
    auto norm = normed(draft, n.value);
    if (!norm) continue;
    norm->weight = weight;
    norm->is_narrowed = n.cast.has_value();
    norm->is_contiguous |= n.is_contiguous;
    if (n.cast) norm->nodes.push_back(*n.cast);
    norm->nodes.push_back(product);
    return norm;
  }
  return {};
}

// By what n is multiplied.
struct Factor {
  ValueId weight = 0;
  bool from_one = false;
  std::vector<NodeIndex> nodes;
};

// weight, or weight + 1, as it is or in float32.
std::optional<Factor> factor_of(const Draft& draft, ValueId value) {
  Factor factor;
  const auto add = made_by(draft, value, "aten::add.Tensor");
  if (add) {
    const auto wide = operand_beside(draft.node(*add), 1);
    if (!wide) return {};
    factor.from_one = true;
    factor.nodes.push_back(*add);
    value = *wide;
  }
  const Uncast weight = without_cast(draft, value, DType::kFloat32);
  if (!is_vector_of_weights(draft, weight.value)) return {};
  if (weight.cast) {
    if (draft.uses(value) != 1) return {};
    factor.nodes.push_back(*weight.cast);
  }
  factor.weight = weight.value;
  return factor;
}

// n * weight or n * (weight + 1), and in x's dtype where there is a cast: the node is the last of
// them.
std::optional<Norm> norm_rounded_once(const Draft& draft, NodeIndex last) {
  std::vector<NodeIndex> nodes{last};
  NodeIndex product = last;
  if (draft.node(last).op == "aten::_to_copy") {
    const auto from = value_at(draft.node(last), 0);
    const auto maker = from ? made_by(draft, *from, "aten::mul.Tensor") : std::nullopt;
    if (!maker) return {};
    nodes.push_back(product = *maker);
  }
  if (draft.node(product).op != "aten::mul.Tensor") return {};
  const auto pair = operands(draft.node(product));
  if (!pair) return {};
  for (const auto& [n, other] : {*pair, Pair{pair->second, pair->first}}) {
    const auto factor = factor_of(draft, other);
    if (!factor) continue;
    auto norm = normed(draft, n);
    if (!norm) continue;
    norm->weight = factor->weight;
    norm->from_one = factor->from_one;
    norm->is_cast = last != product;
    norm->is_narrowed = norm->is_cast;
    norm->nodes.insert(norm->nodes.end(), nodes.begin(), nodes.end());
    norm->nodes.insert(norm->nodes.end(), factor->nodes.begin(), factor->nodes.end());
    return norm;
  }
  return {};
}

// Completes what the last node says. Tells whether x, the weight and the result are of one dtype. A
// float32 that is not narrowed makes the result one.
bool has_one_dtype(const Draft& draft, Norm& norm, NodeIndex last) {
  const DType dtype = dtype_of(draft, norm.x);
  if (!has_kernels(dtype)) return false;
  if (norm.weight && draft.value(*norm.weight).dtype != dtype) return false;
  if (norm.is_cast) {
    const auto cast = cast_to(draft.node(last), dtype);
    if (!cast) return false;
    norm.is_contiguous |= cast->is_contiguous;
  }
  return dtype == DType::kFloat32 || (norm.is_widened && norm.is_narrowed);
}

// aten::layer_norm(x, sizes, weight, bias, epsilon, whether cuDNN may).
std::optional<Node> layer_norm_of(const Draft& draft, const Node& node) {
  if (node.op != "aten::layer_norm" || !value_at(node, 0)) return {};
  const ExprList* const sizes = list_at(node, 1);
  const auto epsilon = number_at(node, 4);
  if (sizes == nullptr || sizes->items.size() != 1 || !epsilon) return {};
  Node made{"djinn::layer_norm", {node.arguments[0]}, node.outputs, {}};
  const DType dtype = dtype_of(draft, value_at(node, 0).value());
  for (const size_t position : {2, 3}) {
    const ArgumentValue* const given = argument_at(node, position);
    if (given == nullptr) return {};
    const auto vector = value_at(node, position);
    if (vector ? !is_vector_of_weights(draft, *vector) || draft.value(*vector).dtype != dtype
               : *given != ArgumentValue(None{})) {
      return {};
    }
    made.arguments.push_back({"", *given});
  }
  made.arguments.push_back({"", *epsilon});
  return made;
}

bool is_named_after(std::string_view op) {
  return op == "aten::mul.Tensor" || op == "aten::_to_copy";
}

// Of a node that is left: gives why, or nothing where it is no root or norm.
std::string_view why_not(const Draft& draft, const Node& node) {
  if (node.op == "aten::layer_norm") return "it is over several dimensions, or of mixed dtypes";
  if (node.op == "aten::rms_norm") return "it is one node already";
  if (node.op != "aten::rsqrt") return {};
  std::vector<NodeIndex> nodes;
  const auto under = value_at(node, 0);
  const auto square = under ? mean_square(draft, *under, nodes) : std::nullopt;
  if (!square) return "its root is of another form";
  const auto maker = draft.maker(square->of);
  const bool subtracts = maker && draft.node(*maker).op == "aten::sub.Tensor";
  return subtracts ? "it subtracts the mean" : "its weight is of another form or dtype";
}

void fuse_norm(Draft& draft, PassReport& report, std::optional<Norm> norm, NodeIndex last) {
  if (!norm || !has_one_dtype(draft, *norm, last)) return;
  if (!draft.may_move(std::ranges::min(norm->nodes), last)) {
    report.leave("something is written amid it");
    return;
  }
  ArgumentValue weight = None{};
  if (norm->weight) weight = ValueRef{*norm->weight};
  draft.fuse(norm->nodes, last,
             {"djinn::rms_norm",
              {{"", ValueRef{norm->x}},
               {"", std::move(weight)},
               {"", norm->epsilon},
               {"", norm->from_one},
               {"", norm->is_contiguous}},
              draft.node(last).outputs,
              {}});
  const ValueId made = draft.node(last).outputs[0];
  if (norm->is_contiguous && draft.value(made).claims_sizes) {
    draft.note_contiguous(made, draft.value(made).sizes);
  }
  ++report.fired;
}

}  // namespace

PassReport rewrite_norms(Draft& draft) {
  PassReport report{"norm", 0, {}};
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    if (!draft.is_there(i)) continue;
    if (auto made = layer_norm_of(draft, draft.node(i))) {
      draft.replace(i, std::move(*made));
      ++report.fired;
    }
    if (!is_named_after(draft.node(i).op)) continue;
    auto norm = plain_norm(draft, i);
    if (!norm) norm = norm_rounded_once(draft, i);
    fuse_norm(draft, report, std::move(norm), i);
  }
  // What is left has no weight, if it is a cast or is not cast.
  for (const std::string_view op : {"aten::_to_copy", "aten::mul.Tensor"}) {
    for (NodeIndex i = 0; i < draft.node_count(); ++i) {
      if (!draft.is_there(i) || draft.node(i).op != op) continue;
      fuse_norm(draft, report, bare_norm(draft, i), i);
    }
  }
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    const std::string_view reason = draft.is_there(i) ? why_not(draft, draft.node(i)) : "";
    if (!reason.empty()) report.leave(reason);
  }
  return report;
}

}  // namespace djinn::srg
