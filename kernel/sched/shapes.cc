// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "kernel/sched/cost.h"
#include "kernel/sched/operators.h"
#include "kernel/srg/expr.h"
#include "kernel/srg/limits.h"

namespace djinn::sched {
namespace {

using srg::Expr;
using srg::ExprList;
using srg::Graph;
using srg::kLocalStorage;
using srg::Node;
using srg::Value;
using srg::ValueRef;

using MaybeShape = std::optional<Shape>;

class ShapeWalk {
 public:
  ShapeWalk(const Graph& graph, std::span<const int64_t> symbols)
      : graph_(graph), symbols_(symbols), shapes_(graph.values.size()) {}

  std::vector<MaybeShape> run() {
    for (size_t id = 0; id < shapes_.size(); ++id) shapes_[id] = stated(graph_.values[id]);
    for (const Node& node : graph_.nodes) {
      if (node.outputs.empty() || shapes_[node.outputs[0]]) continue;
      MaybeShape shape = inferred(node);
      // Without the limit a graph of unsqueezes alone would cost the square of its size.
      if (shape && shape->sizes.size() <= srg::limits::kRank) {
        shapes_[node.outputs[0]] = std::move(shape);
      }
    }
    return std::move(shapes_);
  }

 private:
  // Gives the shape that a view has, or that a claim states.
  [[nodiscard]] MaybeShape stated(const Value& value) const {
    const bool known = value.storage != kLocalStorage || value.claims_sizes;
    if (!known || value.dtype == DType::kInvalid) return std::nullopt;
    Shape shape{value.dtype, {}};
    for (const Expr& size : value.sizes) shape.sizes.push_back(number(size));
    note_repeats(value.strides, shape);
    return shape;
  }

  // Gives the expression's value; 0 if it is negative, or has none at these symbols.
  [[nodiscard]] uint64_t number(const Expr& expr) const {
    if (expr.is_constant()) return static_cast<uint64_t>(std::max<int64_t>(expr.constant, 0));
    const auto value = srg::evaluate(expr, symbols_);
    return value && *value > 0 ? static_cast<uint64_t>(*value) : 0;
  }

  // Of a dimension with stride 0 every entry is the same memory.
  static void note_repeats(const std::vector<Expr>& strides, Shape& shape) {
    for (size_t i = 0; i < strides.size() && i < shape.sizes.size(); ++i) {
      if (strides[i] == Expr(0) && shape.sizes[i] > 0) shape.repeats *= shape.sizes[i];
    }
  }

  [[nodiscard]] MaybeShape inferred(const Node& node) const {
    const MaybeShape x = tensor(node, 0);
    if (!x || is_in_place(node.op)) return x;
    switch (family_of(node.op)) {
      case Family::kNorm:
      case Family::kSoftmax:
      case Family::kActivation:
      case Family::kGate:
      case Family::kUnary:
      case Family::kAngle:
      case Family::kRope:
        return fresh(*x);
      case Family::kCopy:
        return copied(node, *x);
      case Family::kLinear:
        return linear(node, *x);
      case Family::kMatmul:
        return matmul(*x, tensor(node, 1));
      case Family::kAttention:
        return attention(*x, tensor(node, 2));
      case Family::kEmbedding:
        return embedding(*x, tensor(node, 1));
      case Family::kBinary:
        return binary(node, *x);
      case Family::kReduction:
        return reduced(node, *x);
      case Family::kView:
        return view(node, *x);
      default:
        return std::nullopt;
    }
  }

  // A result has its elements for itself, also where its operand is spread over a larger shape.
  static Shape fresh(Shape x) {
    x.repeats = 1;
    return x;
  }

  static Shape copied(const Node& node, const Shape& x) {
    Shape out = fresh(x);
    for (const srg::Argument& argument : node.arguments) {
      if (const auto* dtype = std::get_if<DType>(&argument.value)) out.dtype = *dtype;
    }
    return out;
  }

  [[nodiscard]] MaybeShape tensor(const Node& node, size_t i) const {
    if (i >= node.arguments.size()) return std::nullopt;
    const auto* ref = std::get_if<ValueRef>(&node.arguments[i].value);
    return ref == nullptr ? std::nullopt : shapes_[ref->id];
  }

  template <typename T>
  static const T* argument(const Node& node, size_t i) {
    return i < node.arguments.size() ? std::get_if<T>(&node.arguments[i].value) : nullptr;
  }

  // Gives a dimension's index, counted from the end if negative; nothing if x has no such
  // dimension.
  static std::optional<size_t> dimension(const Expr& expr, const Shape& x) {
    const auto rank = static_cast<int64_t>(x.sizes.size());
    if (!expr.is_constant() || expr.constant < -rank || expr.constant >= rank) return std::nullopt;
    return static_cast<size_t>(expr.constant < 0 ? expr.constant + rank : expr.constant);
  }
  static std::optional<size_t> dimension(const Node& node, size_t i, const Shape& x) {
    const auto* expr = argument<Expr>(node, i);
    return expr == nullptr ? std::nullopt : dimension(*expr, x);
  }

  // In mean(x, dimensions, keep), `keep` says whether a dimension stays with size 1.
  static MaybeShape reduced(const Node& node, Shape x) {
    const auto* dimensions = argument<ExprList>(node, 1);
    const auto* keep = argument<bool>(node, 2);
    if (dimensions == nullptr) return std::nullopt;
    std::vector<bool> gone(x.sizes.size());
    for (const Expr& item : dimensions->items) {
      const auto at = dimension(item, x);
      if (!at) return std::nullopt;
      gone[*at] = true;
    }
    Shape out{x.dtype, {}};
    for (size_t i = 0; i < gone.size(); ++i) {
      if (!gone[i]) out.sizes.push_back(x.sizes[i]);
      if (gone[i] && keep != nullptr && *keep) out.sizes.push_back(1);
    }
    return out;
  }

  MaybeShape linear(const Node& node, const Shape& x) const {
    const MaybeShape weight = tensor(node, 1);
    if (!weight || weight->sizes.size() != 2 || x.sizes.empty()) return std::nullopt;
    // Of our own operators the fourth argument says that the weight is [inputs, outputs].
    const auto* turned = argument<bool>(node, 3);
    Shape out = fresh(x);
    out.sizes.back() = weight->sizes[turned != nullptr && *turned ? 1 : 0];
    return out;
  }

  static MaybeShape matmul(const Shape& a, const MaybeShape& b) {
    if (!b || a.sizes.size() < 2 || b->sizes.size() < 2) return std::nullopt;
    Shape out = fresh(a.sizes.size() >= b->sizes.size() ? a : *b);
    out.sizes[out.sizes.size() - 2] = a.sizes[a.sizes.size() - 2];
    out.sizes.back() = b->sizes.back();
    return out;
  }

  static MaybeShape attention(const Shape& q, const MaybeShape& v) {
    if (!v || q.sizes.empty() || v->sizes.empty()) return std::nullopt;
    Shape out = fresh(q);
    out.sizes.back() = v->sizes.back();
    return out;
  }

  static MaybeShape embedding(const Shape& table, const MaybeShape& indices) {
    if (!indices || table.sizes.size() != 2) return std::nullopt;
    Shape out{table.dtype, indices->sizes};
    out.sizes.push_back(table.sizes[1]);
    return out;
  }

  // The other operand may be a number.
  [[nodiscard]] MaybeShape binary(const Node& node, const Shape& a) const {
    if (argument<ValueRef>(node, 1) == nullptr) return fresh(a);
    const MaybeShape b = tensor(node, 1);
    return b ? broadcast(a, *b) : std::nullopt;
  }

  // The result has a's dtype, because promotion is left to the executor.
  static MaybeShape broadcast(const Shape& a, const Shape& b) {
    Shape out = fresh(a.sizes.size() >= b.sizes.size() ? a : b);
    const Shape& other = a.sizes.size() >= b.sizes.size() ? b : a;
    const size_t shift = out.sizes.size() - other.sizes.size();
    for (size_t i = 0; i < other.sizes.size(); ++i) {
      if (out.sizes[i + shift] == 1) out.sizes[i + shift] = other.sizes[i];
    }
    out.dtype = a.dtype;
    return out;
  }

  MaybeShape view(const Node& node, const Shape& x) const {
    const std::string_view name = base_name(node.op);
    if (name == "aten::as_strided") return strided(node, x);
    if (name == "aten::expand") return expanded(node, x);
    if (name == "aten::view" && argument<DType>(node, 1) != nullptr) return retyped(node, x);
    if (name == "aten::transpose") return transpose(node, x);
    if (name == "aten::permute") return permute(node, x);
    if (name == "aten::slice") return slice(node, x);
    if (name == "aten::unsqueeze") return unsqueeze(node, x);
    if (name == "aten::view" || name == "aten::reshape" || name == "aten::_unsafe_view") {
      return resized(node, x);
    }
    return std::nullopt;
  }

  // as_strided(x, sizes, strides, offset)
  MaybeShape strided(const Node& node, const Shape& x) const {
    const auto* sizes = argument<ExprList>(node, 1);
    const auto* strides = argument<ExprList>(node, 2);
    if (sizes == nullptr || strides == nullptr) return std::nullopt;
    Shape out{x.dtype, {}};
    for (const Expr& size : sizes->items) out.sizes.push_back(number(size));
    note_repeats(strides->items, out);
    return out;
  }

  // expand(x, sizes), where -1 keeps a size and those of 1 are repeated.
  MaybeShape expanded(const Node& node, const Shape& x) const {
    const auto* sizes = argument<ExprList>(node, 1);
    if (sizes == nullptr || sizes->items.size() < x.sizes.size()) return std::nullopt;
    const size_t more = sizes->items.size() - x.sizes.size();
    Shape out{x.dtype, {}, x.repeats};
    for (size_t i = 0; i < sizes->items.size(); ++i) {
      const uint64_t from = i < more ? 1 : x.sizes[i - more];
      const uint64_t to = sizes->items[i] == Expr(-1) ? from : number(sizes->items[i]);
      if (from == 1 && to > 0) out.repeats *= to;
      out.sizes.push_back(to);
    }
    return out;
  }

  // view(x, dtype): the last size counts elements of the other dtype.
  static MaybeShape retyped(const Node& node, Shape x) {
    const uint64_t had = size_of(x.dtype);
    x.dtype = *argument<DType>(node, 1);
    const uint64_t has = size_of(x.dtype);
    if (had == 0 || has == 0) return std::nullopt;
    if (!x.sizes.empty()) x.sizes.back() = x.sizes.back() * had / has;
    return x;
  }

  static MaybeShape transpose(const Node& node, Shape x) {
    const auto a = dimension(node, 1, x);
    const auto b = dimension(node, 2, x);
    if (!a || !b) return std::nullopt;
    std::swap(x.sizes[*a], x.sizes[*b]);
    return x;
  }

  static MaybeShape permute(const Node& node, const Shape& x) {
    const auto* order = argument<ExprList>(node, 1);
    if (order == nullptr || order->items.size() != x.sizes.size()) return std::nullopt;
    Shape out{x.dtype, {}, x.repeats};
    for (const Expr& item : order->items) {
      const auto from = dimension(item, x);
      if (!from) return std::nullopt;
      out.sizes.push_back(x.sizes[*from]);
    }
    return out;
  }

  // slice(x, dimension, start, end, step) has at most end - start elements, and at most x's own.
  MaybeShape slice(const Node& node, Shape x) const {
    const auto at = dimension(node, 1, x);
    const auto* start = argument<Expr>(node, 2);
    const auto* end = argument<Expr>(node, 3);
    const auto* step = argument<Expr>(node, 4);
    if (!at) return std::nullopt;
    if (step != nullptr && *step != Expr(1)) return std::nullopt;
    if (end == nullptr) return x;
    const uint64_t length = number(start == nullptr ? *end : sub(*end, *start));
    x.sizes[*at] = std::min(x.sizes[*at], length);
    return x;
  }

  static MaybeShape unsqueeze(const Node& node, Shape x) {
    const auto* expr = argument<Expr>(node, 1);
    const auto rank = static_cast<int64_t>(x.sizes.size());
    if (expr == nullptr || !expr->is_constant() || expr->constant < -rank - 1 ||
        expr->constant > rank) {
      return std::nullopt;
    }
    const int64_t at = expr->constant < 0 ? expr->constant + rank + 1 : expr->constant;
    x.sizes.insert(x.sizes.begin() + at, 1);
    return x;
  }

  // In view(x, sizes) one size may be -1, which stands for what the others leave.
  MaybeShape resized(const Node& node, const Shape& x) const {
    const auto* sizes = argument<ExprList>(node, 1);
    if (sizes == nullptr) return std::nullopt;
    Shape out{x.dtype, {}};
    std::optional<size_t> open;
    for (const Expr& size : sizes->items) {
      if (size == Expr(-1)) open = out.sizes.size();
      out.sizes.push_back(size == Expr(-1) ? 1 : number(size));
    }
    const uint64_t others = element_count(out);
    if (open && others != 0) out.sizes[*open] = element_count(x) / others;
    return out;
  }

  const Graph& graph_;
  const std::span<const int64_t> symbols_;
  std::vector<MaybeShape> shapes_;
};

// A view of a weight has its form.
void note_forms(const Graph& graph, const srg::WeightForms& forms,
                std::vector<MaybeShape>& shapes) {
  for (size_t id = 0; id < shapes.size(); ++id) {
    const size_t storage = graph.values[id].storage;
    if (shapes[id] && storage < forms.size()) shapes[id]->form = forms[storage];
  }
  for (const Node& node : graph.nodes) {
    if (family_of(node.op) != Family::kView || node.arguments.empty()) continue;
    const auto* const shown = std::get_if<ValueRef>(&node.arguments[0].value);
    if (shown == nullptr || !shapes[shown->id]) continue;
    for (const srg::ValueId id : node.outputs) {
      if (shapes[id]) shapes[id]->form = shapes[shown->id]->form;
    }
  }
}

}  // namespace

std::vector<std::optional<Shape>> shapes_at(const Graph& graph, std::span<const int64_t> symbols,
                                            const srg::WeightForms& forms) {
  std::vector<MaybeShape> shapes = ShapeWalk(graph, symbols).run();
  if (!forms.empty()) note_forms(graph, forms, shapes);
  return shapes;
}

std::vector<int64_t> upper_symbols(const Graph& graph) {
  std::vector<int64_t> symbols;
  for (const srg::Symbol& symbol : graph.symbols) symbols.push_back(symbol.max);
  return symbols;
}

}  // namespace djinn::sched
