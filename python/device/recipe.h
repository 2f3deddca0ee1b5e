// SPDX-License-Identifier: Apache-2.0

// Recipe: what recording one operator with arguments of certain kinds and shapes means: the node to
// write and the tensors to make. Found by a run on the meta device once, then by a key: operator,
// each tensor's dtype, sizes, strides and which of them share storages, and every other argument.
//
//   Call       an operator's arguments, taken apart: tensors of the device in order, and the rest
//   Key        a Call as words, equal for calls that have the same recipe
//   Product    one result: a tensor of its own, an argument given back, or a view of one
//
// invariant: a recipe never changes; threads share it.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernel/srg/graph.h"
#include "python/device/torch_headers.h"

namespace djinn::device {

using Stack = std::vector<c10::IValue>;
using Key = c10::SmallVector<uint64_t, 64>;

// The tensors of the device among the arguments, lists flattened; with what is left, a node can be
// written. Precondition of all that takes one: every tensor on the stack is of the device or a
// wrapped number.
std::vector<at::Tensor> tensors_of(const Stack& stack);

// "aten::add.Tensor".
std::string qualified(const c10::OperatorName& name);

// TorchScript has a type of its own for them, which equals PyTorch's and is another object.
inline bool is_list_of_optional_tensors(const c10::IValue& value) {
  return value.isOptionalTensorList() ||
         (value.isList() && *value.toList().elementType() == *c10::OptionalType::ofTensor());
}

// The argument with f(tensor) for each of its tensors, in lists too.
template <typename F>
c10::IValue with_tensors(const c10::IValue& value, F&& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& item : value.toTensorVector()) list.push_back(f(item));
    return list;
  }
  if (is_list_of_optional_tensors(value)) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(item.isTensor() ? std::optional<at::Tensor>(f(item.toTensor()))
                                     : std::nullopt);
    }
    return list;
  }
  return value;
}

// Throws what the meta kernel, if there is one, says of the call.
void check_on_meta(const c10::OperatorHandle& op, const Stack& stack);

// Nothing for calls that must be inferred each time.
void make_key(const c10::OperatorHandle& op, const Stack& stack, Key& key);

struct Product {
  enum class Kind : uint8_t {
    kFresh,      // on a storage of its own
    kArgument,   // tensor number `argument` itself
    kView,       // on the storage of tensor number `argument`
    kShared,     // on the storage of product number `argument`
    kUndefined,  // no tensor
  };
  Kind kind = Kind::kFresh;
  uint32_t argument = 0;
  at::ScalarType type = at::kFloat;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t offset = 0;
  uint64_t bytes = 0;  // kFresh: of the storage
  friend bool operator==(const Product&, const Product&) = default;
};

struct Recipe {
  std::string op;                        // qualified
  std::vector<srg::Argument> arguments;  // tensors are ValueRefs: numbers of tensors_of()
  std::vector<uint32_t> written;         // tensors that the operator writes
  std::vector<Product> products;
  bool list = false;            // the one result is a list of the products
  bool small_integers = false;  // all products are small integers or booleans
};

// Runs the operator on meta tensors. Nothing if shapes depend on data or there is no meta kernel.
// Throws what the operator throws for wrong arguments. Takes the GIL for kernels in Python, so no
// lock may be held.
std::shared_ptr<const Recipe> infer(const c10::OperatorHandle& op, const Stack& stack);

// As infer, without products, for an operator whose result the daemon describes. An operator that
// gives back what it writes, and nothing else, needs nobody to describe that.
std::shared_ptr<const Recipe> open_ended(const c10::OperatorHandle& op, const Stack& stack);

struct Found {
  std::shared_ptr<const Recipe> recipe;  // null as infer's, or the operator is tripped (breaker.h)
  std::exception_ptr failure;            // of the inference: the operator is on trial
};
// The recipe from the cache, or inferred and kept there. Throws as infer.
Found recipe_for(const c10::OperatorHandle& op, const Stack& stack);

struct RecipeStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
};
RecipeStats recipe_stats();

}  // namespace djinn::device
