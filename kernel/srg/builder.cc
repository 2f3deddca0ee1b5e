// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/builder.h"

#include <functional>

#include "kernel/base/assert.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {

ValueList tensors(const std::vector<Tensor>& items) {
  ValueList list;
  for (const Tensor tensor : items) list.ids.emplace_back(tensor.id);
  return list;
}

GraphBuilder::GraphBuilder(std::string name) {
  graph_.name = std::move(name);
}

Expr GraphBuilder::symbol(std::string name, int64_t min, int64_t max, SymbolRole role) {
  graph_.symbols.push_back({std::move(name), min, max, role});
  return symbol_expr(static_cast<SymbolIndex>(graph_.symbols.size() - 1));
}

Tensor GraphBuilder::add_view(StorageIndex storage, std::string name, DType dtype, Sizes sizes) {
  Value value;
  value.name = std::move(name);
  value.storage = storage;
  value.dtype = dtype;
  value.sizes = std::move(sizes);
  graph_.values.push_back(std::move(value));
  return {static_cast<ValueId>(graph_.values.size() - 1)};
}

Tensor GraphBuilder::input(std::string name, DType dtype, Sizes sizes, InputRole role) {
  Storage storage;
  storage.kind = StorageKind::kInput;
  storage.name = name;
  storage.role = role;
  graph_.storages.push_back(std::move(storage));
  return add_view(static_cast<StorageIndex>(graph_.storages.size() - 1), std::move(name), dtype,
                  std::move(sizes));
}

Tensor GraphBuilder::weight(std::string_view name, DType dtype, Sizes sizes) {
  const auto known = weights_.find(name);
  if (known == weights_.end()) {
    Storage storage;
    storage.kind = StorageKind::kWeight;
    storage.name = name;
    storage.is_declared = true;
    graph_.storages.push_back(std::move(storage));
    const auto index = static_cast<StorageIndex>(graph_.storages.size() - 1);
    weights_.emplace(name, index);
    return add_view(index, std::string(name), dtype, std::move(sizes));
  }
  for (ValueId id = 0; id < graph_.values.size(); ++id) {
    const Value& value = graph_.values[id];
    if (value.storage == known->second && value.dtype == dtype && value.sizes == sizes &&
        value.strides.empty() && value.offset == Expr()) {
      return {id};
    }
  }
  return add_view(known->second, "", dtype, std::move(sizes));
}

Tensor GraphBuilder::sequence(uint32_t layer, SequencePart part, DType dtype, Sizes sizes) {
  Storage storage;
  storage.kind = StorageKind::kSequence;
  storage.layer = layer;
  storage.part = part;
  graph_.storages.push_back(std::move(storage));
  return add_view(static_cast<StorageIndex>(graph_.storages.size() - 1), "", dtype,
                  std::move(sizes));
}

Tensor GraphBuilder::view(Tensor of, DType dtype, Sizes sizes, Sizes strides, Expr offset) {
  DJINN_ASSERT(of.id < graph_.values.size());
  const StorageIndex storage = graph_.values[of.id].storage;
  DJINN_ASSERT(storage != kLocalStorage);
  const Tensor tensor = add_view(storage, "", dtype, std::move(sizes));
  graph_.values[tensor.id].strides = std::move(strides);
  graph_.values[tensor.id].offset = std::move(offset);
  return tensor;
}

Tensor GraphBuilder::op(std::string_view name, std::vector<Arg> positional,
                        std::vector<NamedArg> named) {
  return op_n(1, name, std::move(positional), std::move(named)).front();
}

std::vector<Tensor> GraphBuilder::op_n(uint32_t outputs, std::string_view name,
                                       std::vector<Arg> positional, std::vector<NamedArg> named) {
  Node node;
  node.op = name;
  for (Arg& arg : positional) node.arguments.push_back({"", std::move(arg.value)});
  for (NamedArg& item : named) {
    node.arguments.push_back({std::move(item.name), std::move(item.arg.value)});
  }
  std::vector<Tensor> made;
  for (uint32_t i = 0; i < outputs; ++i) {
    graph_.values.emplace_back();
    node.outputs.push_back(static_cast<ValueId>(graph_.values.size() - 1));
    made.push_back({node.outputs.back()});
  }
  node.annotation = context_;
  graph_.nodes.push_back(std::move(node));
  return made;
}

void GraphBuilder::claim(Tensor tensor, DType dtype, Sizes sizes, Sizes strides) {
  DJINN_ASSERT(tensor.id < graph_.values.size());
  Value& value = graph_.values[tensor.id];
  value.dtype = dtype;
  value.sizes = std::move(sizes);
  value.strides = std::move(strides);
  value.claims_sizes = true;
}

void GraphBuilder::name(Tensor tensor, std::string name) {
  DJINN_ASSERT(tensor.id < graph_.values.size());
  graph_.values[tensor.id].name = std::move(name);
}

void GraphBuilder::criticality(Tensor tensor, uint8_t criticality) {
  DJINN_ASSERT(tensor.id < graph_.values.size());
  graph_.values[tensor.id].criticality = criticality;
}

GraphBuilder::Scope GraphBuilder::module(std::string_view path) {
  Annotation inner = context_;
  if (!inner.module_path.empty()) inner.module_path += '.';
  inner.module_path += path;
  return {*this, std::move(inner)};
}

GraphBuilder::Scope GraphBuilder::role(std::string_view role) {
  Annotation inner = context_;
  inner.role = role;
  return {*this, std::move(inner)};
}

GraphBuilder::Scope GraphBuilder::phase(Phase phase) {
  Annotation inner = context_;
  inner.phase = phase;
  return {*this, std::move(inner)};
}

Annotation& GraphBuilder::annotation() {
  DJINN_ASSERT(!graph_.nodes.empty());
  return graph_.nodes.back().annotation;
}

void GraphBuilder::output(Tensor tensor) {
  graph_.outputs.push_back(tensor.id);
}

void GraphBuilder::output(std::string name, Tensor tensor) {
  this->name(tensor, std::move(name));
  output(tensor);
}

Result<Graph> GraphBuilder::finish() && {
  DJINN_CHECK(verify(graph_));
  return std::move(graph_);
}

}  // namespace djinn::srg
