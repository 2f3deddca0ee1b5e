// SPDX-License-Identifier: Apache-2.0

// What passes ask of a node's arguments. Nothing where the argument is another kind, or not there;
// a name instead of a position is not looked at: captures and builders give positions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernel/srg/graph.h"
#include "kernel/srg/rewrite/draft.h"

namespace djinn::srg {

// nullptr where there is none at that position, or it has a name.
[[nodiscard]] const ArgumentValue* argument_at(const Node& node, size_t position);
[[nodiscard]] std::optional<ValueId> value_at(const Node& node, size_t position);
// A number without symbols, whichever way it is written.
[[nodiscard]] std::optional<double> number_of(const ArgumentValue& value);
[[nodiscard]] std::optional<double> number_at(const Node& node, size_t position);
[[nodiscard]] const ExprList* list_at(const Node& node, size_t position);
// By name, wherever it stands.
[[nodiscard]] const ArgumentValue* argument_named(const Node& node, std::string_view name);

// The node that makes the value, if it is that operator's and nobody else uses what it makes.
[[nodiscard]] std::optional<NodeIndex> made_by(const Draft& draft, ValueId value,
                                               std::string_view op);

// A node of two arguments; a third one may be alpha=1.
[[nodiscard]] bool has_two_arguments(const Node& node);
// The two values that it takes.
struct Pair {
  ValueId first = 0;
  ValueId second = 0;
};
[[nodiscard]] std::optional<Pair> operands(const Node& node);
// What it takes beside that number; nothing where it takes another number or none.
[[nodiscard]] std::optional<ValueId> operand_beside(const Node& node, double number);

// A node that gives its argument in another dtype, and lies as that does or contiguous.
struct Cast {
  ValueId from = 0;
  bool is_contiguous = false;
};
[[nodiscard]] std::optional<Cast> cast_to(const Node& node, DType dtype);
// Nothing where it is none.
[[nodiscard]] std::optional<DType> dtype_of_cast(const Node& node);

// The sizes of a value, as it is seen; nothing where nothing tells them.
[[nodiscard]] std::optional<std::vector<Expr>> shape_of(const Draft& draft, ValueId value);
// Of a value, or of what it is a view of; kInvalid where nothing tells it.
[[nodiscard]] DType dtype_of(const Draft& draft, ValueId value);

// Whether the row kernels compute on it.
[[nodiscard]] bool has_kernels(DType dtype);

// What a view of a storage or of another value shows, in elements.
struct View {
  ValueId base = 0;  // what it is a view of; the value itself where it is none
  std::vector<Expr> sizes;
  std::vector<Expr> strides;
  Expr offset;
};
// Of a node aten::as_strided(base, sizes, strides, offset).
[[nodiscard]] std::optional<View> view_of(const Draft& draft, ValueId value);
// The same, or all of a value of which a pass has found that it lies contiguous.
[[nodiscard]] std::optional<View> view_or_all_of(const Draft& draft, ValueId value);
// Nothing where one of them is no expression.
[[nodiscard]] std::optional<std::vector<Expr>> contiguous_strides(const std::vector<Expr>& sizes);
// Nothing where it is no expression, as a product of symbols is none.
[[nodiscard]] std::optional<Expr> product(const Expr& one, const Expr& other);

}  // namespace djinn::srg
