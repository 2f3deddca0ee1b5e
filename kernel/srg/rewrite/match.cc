// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/match.h"

#include <algorithm>
#include <string>

#include "kernel/srg/expr.h"

namespace djinn::srg {

const ArgumentValue* argument_at(const Node& node, size_t position) {
  if (position >= node.arguments.size() || !node.arguments[position].name.empty()) return nullptr;
  return &node.arguments[position].value;
}

std::optional<ValueId> value_at(const Node& node, size_t position) {
  const auto* const argument = argument_at(node, position);
  const auto* const ref = argument == nullptr ? nullptr : std::get_if<ValueRef>(argument);
  return ref == nullptr ? std::nullopt : std::optional(ref->id);
}

std::optional<double> number_of(const ArgumentValue& value) {
  if (const auto* const real = std::get_if<double>(&value)) return *real;
  const auto* const whole = std::get_if<Expr>(&value);
  if (whole == nullptr || !whole->is_constant()) return {};
  return static_cast<double>(whole->constant);
}

std::optional<double> number_at(const Node& node, size_t position) {
  const auto* const argument = argument_at(node, position);
  return argument == nullptr ? std::nullopt : number_of(*argument);
}

const ExprList* list_at(const Node& node, size_t position) {
  const auto* const argument = argument_at(node, position);
  return argument == nullptr ? nullptr : std::get_if<ExprList>(argument);
}

const ArgumentValue* argument_named(const Node& node, std::string_view name) {
  const auto found = std::ranges::find(node.arguments, name, &Argument::name);
  return found == node.arguments.end() ? nullptr : &found->value;
}

std::optional<NodeIndex> made_by(const Draft& draft, ValueId value, std::string_view op) {
  const auto maker = draft.lone_maker(value);
  return maker && draft.node(*maker).op == op ? maker : std::nullopt;
}

bool has_two_arguments(const Node& node) {
  if (node.outputs.size() != 1 || node.arguments.size() < 2) return false;
  if (node.arguments.size() == 2) return true;
  const ArgumentValue* const alpha = argument_named(node, "alpha");
  return node.arguments.size() == 3 && alpha != nullptr && number_of(*alpha) == 1.0;
}

std::optional<Pair> operands(const Node& node) {
  const auto first = value_at(node, 0), second = value_at(node, 1);
  if (!first || !second || !has_two_arguments(node)) return {};
  return Pair{*first, *second};
}

std::optional<ValueId> operand_beside(const Node& node, double number) {
  if (!has_two_arguments(node) || number_at(node, 1) != number) return {};
  return value_at(node, 0);
}

std::optional<Cast> cast_to(const Node& node, DType dtype) {
  const ArgumentValue* const format = argument_named(node, "memory_format");
  const ArgumentValue* const to = argument_named(node, "dtype");
  const size_t named = format == nullptr ? 1 : 2;
  if (node.op != "aten::_to_copy" || node.arguments.size() != 1 + named) return {};
  if (to == nullptr || *to != ArgumentValue(dtype)) return {};
  if (format != nullptr && *format != ArgumentValue(std::string("contiguous_format"))) return {};
  const auto from = value_at(node, 0);
  return from ? std::optional(Cast{*from, format != nullptr}) : std::nullopt;
}

std::optional<DType> dtype_of_cast(const Node& node) {
  const ArgumentValue* const dtype = argument_named(node, "dtype");
  const auto* const to = dtype == nullptr ? nullptr : std::get_if<DType>(dtype);
  return to != nullptr && cast_to(node, *to) ? std::optional(*to) : std::nullopt;
}

std::optional<View> view_of(const Draft& draft, ValueId value) {
  const auto maker = draft.maker(value);
  if (!maker || draft.node(*maker).op != "aten::as_strided") return {};
  const Node& node = draft.node(*maker);
  const auto base = value_at(node, 0);
  const ExprList* const sizes = list_at(node, 1);
  const ExprList* const strides = list_at(node, 2);
  const auto* const argument = argument_at(node, 3);
  const auto* const offset = argument == nullptr ? nullptr : std::get_if<Expr>(argument);
  if (!base || sizes == nullptr || strides == nullptr || offset == nullptr) return {};
  if (sizes->items.size() != strides->items.size()) return {};
  return View{*base, sizes->items, strides->items, *offset};
}

std::optional<std::vector<Expr>> shape_of(const Draft& draft, ValueId value) {
  if (auto view = view_of(draft, value)) return std::move(view->sizes);
  if (const auto* const sizes = draft.contiguous_sizes(value)) return *sizes;
  const Value& claimed = draft.value(value);
  const bool is_known = claimed.storage != kLocalStorage || claimed.claims_sizes;
  return is_known ? std::optional(claimed.sizes) : std::nullopt;
}

DType dtype_of(const Draft& draft, ValueId value) {
  if (const auto view = view_of(draft, value)) value = view->base;
  const auto maker = draft.maker(value);
  const auto cast = maker ? dtype_of_cast(draft.node(*maker)) : std::nullopt;
  return cast.value_or(draft.value(value).dtype);
}

bool has_kernels(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

std::optional<View> view_or_all_of(const Draft& draft, ValueId value) {
  if (auto view = view_of(draft, value)) return view;
  const std::vector<Expr>* const sizes = draft.contiguous_sizes(value);
  if (sizes == nullptr) return {};
  auto strides = contiguous_strides(*sizes);
  return strides ? std::optional(View{value, *sizes, *std::move(strides), 0}) : std::nullopt;
}

std::optional<std::vector<Expr>> contiguous_strides(const std::vector<Expr>& sizes) {
  std::vector<Expr> strides(sizes.size());
  std::optional<Expr> next = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (!next) return {};
    strides[d] = *next;
    next = product(*next, sizes[d]);
  }
  return strides;
}

std::optional<Expr> product(const Expr& one, const Expr& other) {
  if (other.is_constant()) return one * other.constant;
  return one.is_constant() ? std::optional(other * one.constant) : std::nullopt;
}

}  // namespace djinn::srg
