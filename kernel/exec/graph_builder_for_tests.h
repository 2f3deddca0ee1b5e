// SPDX-License-Identifier: Apache-2.0

// A few words to write graphs with in this folder's tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernel/srg/expr.h"
#include "kernel/srg/graph.h"

namespace djinn::exec {

class GraphBuilder {
 public:
  srg::Expr symbol(std::string name, int64_t min, int64_t max,
                   srg::SymbolRole role = srg::SymbolRole::kPlain) {
    graph.symbols.push_back({std::move(name), min, max, role});
    return srg::symbol_expr(static_cast<srg::SymbolIndex>(graph.symbols.size() - 1));
  }

  srg::ValueRef input(std::string name, DType dtype, std::vector<srg::Expr> sizes) {
    return on_storage(storage(srg::StorageKind::kInput, std::move(name)), dtype, std::move(sizes));
  }
  srg::ValueRef weight(std::string name, DType dtype, std::vector<srg::Expr> sizes) {
    return on_storage(storage(srg::StorageKind::kWeight, std::move(name)), dtype, std::move(sizes));
  }
  srg::StorageIndex storage(srg::StorageKind kind, std::string name) {
    srg::Storage made;
    made.kind = kind;
    made.name = std::move(name);
    graph.storages.push_back(std::move(made));
    return static_cast<srg::StorageIndex>(graph.storages.size() - 1);
  }
  srg::ValueRef on_storage(srg::StorageIndex storage_index, DType dtype,
                           std::vector<srg::Expr> sizes, std::vector<srg::Expr> strides = {}) {
    srg::Value value;
    value.name = "v" + std::to_string(graph.values.size());
    value.storage = storage_index;
    value.dtype = dtype;
    value.sizes = std::move(sizes);
    value.strides = std::move(strides);
    graph.values.push_back(std::move(value));
    return {static_cast<srg::ValueId>(graph.values.size() - 1)};
  }

  srg::ValueRef call(std::string op, std::vector<srg::Argument> arguments) {
    return call_many(std::move(op), std::move(arguments), 1)[0];
  }
  std::vector<srg::ValueRef> call_many(std::string op, std::vector<srg::Argument> arguments,
                                       size_t results) {
    srg::Node node;
    node.op = std::move(op);
    node.arguments = std::move(arguments);
    std::vector<srg::ValueRef> refs;
    for (size_t i = 0; i < results; ++i) {
      srg::Value value;
      value.name = "v" + std::to_string(graph.values.size());
      node.outputs.push_back(static_cast<srg::ValueId>(graph.values.size()));
      refs.push_back({node.outputs.back()});
      graph.values.push_back(std::move(value));
    }
    graph.nodes.push_back(std::move(node));
    return refs;
  }
  void output(srg::ValueRef value) { graph.outputs.push_back(value.id); }

  srg::Graph graph;
};

// Arguments: arg(x) by position, arg("dim", x) by name.
inline srg::Argument arg(srg::ArgumentValue value) {
  return {"", std::move(value)};
}
inline srg::Argument arg(std::string name, srg::ArgumentValue value) {
  return {std::move(name), std::move(value)};
}
inline srg::Argument integer(int64_t value) {
  return {"", srg::Expr(value)};
}
inline srg::Argument integers(std::vector<srg::Expr> items) {
  return {"", srg::ExprList{std::move(items)}};
}

}  // namespace djinn::exec
