// SPDX-License-Identifier: Apache-2.0

// This finds which inputs a graph may write, by what schemas say of aliases: no operator is called
// for it.
#include <algorithm>

#include "kernel/exec/allow_list.h"
#include "kernel/exec/cpu_executor.h"

namespace djinn::exec {
namespace {

using Ids = std::vector<srg::ValueId>;

Ids ids_of(const srg::ArgumentValue& value) {
  if (const auto* ref = std::get_if<srg::ValueRef>(&value)) return {ref->id};
  Ids ids;
  if (const auto* list = std::get_if<srg::ValueList>(&value)) {
    for (const auto& id : list->ids) {
      if (id) ids.push_back(*id);
    }
  }
  return ids;
}

// Gives the values of each argument by its position in the schema; arguments that the schema does
// not know are left out.
std::vector<Ids> values_by_position(const c10::FunctionSchema& schema, const srg::Node& node) {
  std::vector<Ids> values(schema.arguments().size());
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    const srg::Argument& argument = node.arguments[i];
    const auto position = argument.name.empty() ? std::optional<int>(static_cast<int>(i))
                                                : schema.argumentIndexWithName(argument.name);
    if (!position || static_cast<size_t>(*position) >= values.size()) continue;
    values[static_cast<size_t>(*position)] = ids_of(argument.value);
  }
  return values;
}

class Writes {
 public:
  explicit Writes(const srg::Graph& graph) : graph_(graph) {
    for (const srg::Value& value : graph.values) roots_.push_back(value.storage);
  }

  void follow(const srg::Node& node, const Operator& op) {
    const c10::FunctionSchema& schema = op.handle.schema();
    const std::vector<Ids> values = values_by_position(schema, node);
    for (size_t i = 0; i < values.size(); ++i) {
      const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      for (const srg::ValueId id : values[i]) note(roots_[id]);
    }
    for (size_t i = 0; i < node.outputs.size() && !op.returns.empty(); ++i) {
      const Return& result = op.returns[std::min(i, op.returns.size() - 1)];
      if (!result.is_aliased || values[result.argument].empty()) continue;
      roots_[node.outputs[i]] = roots_[values[result.argument][0]];
    }
  }

  std::vector<srg::StorageIndex> take() && { return std::move(written_); }

 private:
  void note(srg::StorageIndex root) {
    if (root == srg::kLocalStorage || graph_.storages[root].kind != srg::StorageKind::kInput)
      return;
    if (std::ranges::find(written_, root) == written_.end()) written_.push_back(root);
  }

  const srg::Graph& graph_;
  std::vector<srg::StorageIndex> roots_;  // by value
  std::vector<srg::StorageIndex> written_;
};

}  // namespace

std::vector<srg::StorageIndex> CpuExecutor::inputs_written(const srg::Graph& graph) const {
  Writes writes(graph);
  for (const srg::Node& node : graph.nodes) {
    const auto op = resolve_operator(node.op);
    if (op) writes.follow(node, **op);
  }
  return std::move(writes).take();
}

}  // namespace djinn::exec
