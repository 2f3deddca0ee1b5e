// SPDX-License-Identifier: Apache-2.0

// GraphBuilder: writes a graph as one would write the model.
//
//   GraphBuilder g("mlp");
//   Expr tokens = g.symbol("tokens", 1, 512, SymbolRole::kTokens);
//   Tensor x = g.input("x", DType::kFloat32, {tokens, 384});
//   {
//     auto scope = g.module("encoder.mlp");
//     Tensor w = g.weight("encoder.mlp.weight", DType::kFloat32, {1536, 384});
//     x = g.op("aten::gelu", {g.op("aten::linear", {x, w, none})}, {{"approximate", "tanh"}});
//   }
//   g.output("y", x);
//   Result<Graph> graph = std::move(g).finish();
//
// Nothing fails before finish(), which verifies the whole: an expression that overflowed, a name
// that is no name and a role used twice are found there.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/srg/expr.h"
#include "kernel/srg/graph.h"

namespace djinn::srg {

// A value of the graph under construction. It is a type of its own, so that no integer is taken for
// one.
struct Tensor {
  ValueId id = 0;
};

inline constexpr None none{};

using Sizes = std::vector<Expr>;

// One argument of op(). Every integer type is an expression, float and double are doubles; lists
// are spelled out: ints({batch, tokens, 12, 64}), tensors({a, b}).
struct Arg {
  ArgumentValue value;

  Arg(None) : value(None{}) {}                        // NOLINT
  Arg(Tensor tensor) : value(ValueRef{tensor.id}) {}  // NOLINT
  Arg(std::optional<Tensor> tensor) {                 // NOLINT
    if (tensor) value = ValueRef{tensor->id};
  }
  Arg(Expr expr) : value(std::move(expr)) {}  // NOLINT
  template <std::integral T>
  requires(!std::same_as<T, bool>) Arg(T integer)
      : value(Expr(static_cast<int64_t>(integer))) {}  // NOLINT
  template <std::floating_point T>
  Arg(T number) : value(std::in_place_type<double>, number) {}  // NOLINT
  template <std::same_as<bool> T>
  Arg(T flag) : value(std::in_place_type<bool>, flag) {}                   // NOLINT
  Arg(const char* text) : value(std::in_place_type<std::string>, text) {}  // NOLINT
  Arg(std::string text) : value(std::move(text)) {}                        // NOLINT
  Arg(DType dtype) : value(dtype) {}                                       // NOLINT
  Arg(ExprList list) : value(std::move(list)) {}                           // NOLINT
  Arg(ValueList list) : value(std::move(list)) {}                          // NOLINT
  Arg(DoubleList list) : value(std::move(list)) {}                         // NOLINT
  Arg(BoolList list) : value(std::move(list)) {}                           // NOLINT
};

struct NamedArg {
  std::string name;
  Arg arg;
};

[[nodiscard]] inline ExprList ints(std::vector<Expr> items) {
  return {std::move(items)};
}
[[nodiscard]] ValueList tensors(const std::vector<Tensor>& items);

class GraphBuilder {
 public:
  // Ends what it began (a module, a role, a phase) when it goes out of scope. Scopes nest.
  class [[nodiscard]] Scope {
   public:
    Scope(Scope&&) = delete;
    ~Scope() { builder_.context_ = std::move(before_); }

   private:
    friend class GraphBuilder;
    Scope(GraphBuilder& builder, Annotation inner)
        : builder_(builder), before_(std::exchange(builder.context_, std::move(inner))) {}
    GraphBuilder& builder_;
    Annotation before_;
  };

  explicit GraphBuilder(std::string name);

  Expr symbol(std::string name, int64_t min, int64_t max, SymbolRole role = SymbolRole::kPlain);

  Tensor input(std::string name, DType dtype, Sizes sizes, InputRole role = InputRole::kUser);

  // The same name again gives the same storage (tied weights), and the same value if dtype and
  // sizes agree.
  Tensor weight(std::string_view name, DType dtype, Sizes sizes);

  // The keys or values of one layer of the run's sequence group; each buffer is asked for once.
  Tensor sequence(uint32_t layer, SequencePart part, DType dtype, Sizes sizes);

  // Another view of the storage of an input, weight or sequence buffer. strides and offset in
  // elements; no strides: contiguous. of is not the value of a node: use a view operator for those.
  Tensor view(Tensor of, DType dtype, Sizes sizes, Sizes strides = {}, Expr offset = {});

  // Adds an operator with one result. In-place operators have one too: their result is another
  // value on the storage of their first argument, as the schema's alias annotations say.
  Tensor op(std::string_view name, std::vector<Arg> positional, std::vector<NamedArg> named = {});
  // Adds an operator with as many results as the schema has; 0 for one that returns nothing.
  std::vector<Tensor> op_n(uint32_t outputs, std::string_view name, std::vector<Arg> positional,
                           std::vector<NamedArg> named = {});

  // States what is known of a node's value before admission, which checks it.
  void claim(Tensor tensor, DType dtype, Sizes sizes, Sizes strides = {});
  // A name for people, and for text. Unique.
  void name(Tensor tensor, std::string name);
  void criticality(Tensor tensor, uint8_t criticality);

  // Annotations of the nodes made while the scope lives. Paths of nested modules join with dots; an
  // inner role or phase replaces the outer.
  Scope module(std::string_view path);
  Scope role(std::string_view role);
  Scope phase(Phase phase);
  // The annotation of the latest node, to set what scopes do not. Precondition: there is one.
  [[nodiscard]] Annotation& annotation();

  // Makes the tensor an output, which may leave the run. The named form names the value too.
  void output(Tensor tensor);
  void output(std::string name, Tensor tensor);

  // The verified graph, or verify()'s error. The builder is spent.
  Result<Graph> finish() &&;

 private:
  Tensor add_view(StorageIndex storage, std::string name, DType dtype, Sizes sizes);

  Graph graph_;
  Annotation context_;
  std::map<std::string, StorageIndex, std::less<>> weights_;
};

}  // namespace djinn::srg
