// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/sequence_reach.h"

#include <algorithm>
#include <string_view>
#include <variant>
#include <vector>

namespace djinn::srg {
namespace {

constexpr size_t kTokenDimension = 2;

// Gives null if the argument was left out.
const ArgumentValue* argument(const Node& node, size_t position, std::string_view name) {
  if (position < node.arguments.size() && node.arguments[position].name.empty()) {
    return &node.arguments[position].value;
  }
  const auto found = std::ranges::find(node.arguments, name, &Argument::name);
  return found == node.arguments.end() ? nullptr : &found->value;
}

const Expr* expression(const Node& node, size_t position, std::string_view name) {
  const ArgumentValue* const value = argument(node, position, name);
  return value == nullptr ? nullptr : std::get_if<Expr>(value);
}

bool is(const ArgumentValue* value, ValueId id) {
  const auto* const ref = value == nullptr ? nullptr : std::get_if<ValueRef>(value);
  return ref != nullptr && ref->id == id;
}

bool is(const Expr* expr, int64_t number) {
  return expr != nullptr && *expr == Expr(number);
}

class Reach {
 public:
  explicit Reach(const Graph& graph) : graph_(graph), whole_(graph.values.size(), false) {}

  bool stays() {
    const bool has_buffers = std::ranges::any_of(
        graph_.storages, [](const Storage& one) { return one.kind == StorageKind::kSequence; });
    if (!has_buffers) return true;
    for (ValueId id = 0; id < graph_.values.size(); ++id) {
      if (!is_of_buffer(graph_.values[id])) continue;
      const Value& value = graph_.values[id];
      if (value.sizes.size() != 4 || value.offset != Expr()) return false;
      whole_[id] = !ends_with_tokens(value.sizes[kTokenDimension]);
    }
    return std::ranges::all_of(graph_.nodes, [&](const Node& node) { return stays(node); }) &&
           std::ranges::none_of(graph_.outputs, [&](ValueId id) { return whole_[id]; });
  }

 private:
  bool is_of_buffer(const Value& value) const {
    return value.storage != kLocalStorage &&
           graph_.storages[value.storage].kind == StorageKind::kSequence;
  }
  SymbolRole role_of(const Term& term) const { return graph_.symbols[term.symbol].role; }

  bool stays(const Node& node) {
    if (node.op.find("as_strided") != std::string::npos) return false;
    for (size_t i = 0; i < node.arguments.size(); ++i) {
      for (const ValueId id : used(node.arguments[i].value)) {
        if (whole_[id] && !stays(node, i, id)) return false;
      }
    }
    return true;
  }
  // Tells whether a node that uses a whole buffer as argument i reads or writes no further than the
  // tokens.
  bool stays(const Node& node, size_t i, ValueId id) {
    if (i != 0 || node.outputs.size() != 1 || !is(argument(node, 0, ""), id)) return false;
    if (node.op == "djinn::kv_append") {
      whole_[node.outputs[0]] = true;
      return true;
    }
    if (!is(expression(node, 1, "dim"), kTokenDimension)) return false;
    if (node.op == "aten::slice.Tensor") {
      const Expr* const end = expression(node, 3, "end");
      return end != nullptr && ends_with_tokens(*end);
    }
    if (node.op != "aten::narrow" || !is(expression(node, 2, "start"), 0)) return false;
    const Expr* const length = expression(node, 3, "length");
    return length != nullptr && ends_with_tokens(*length);
  }
  static std::vector<ValueId> used(const ArgumentValue& value) {
    if (const auto* const ref = std::get_if<ValueRef>(&value)) return {ref->id};
    std::vector<ValueId> ids;
    if (const auto* const list = std::get_if<ValueList>(&value)) {
      for (const auto& id : list->ids) {
        if (id) ids.push_back(*id);
      }
    }
    return ids;
  }

  // Tells whether the number is at most past + tokens, and not negative, which would count from the
  // end. Since there is at least one new token, a constant 1 may stand in place of the tokens.
  bool ends_with_tokens(const Expr& end) const {
    bool counts_past = false, counts_tokens = false;
    for (const Term& term : end.terms) {
      const SymbolRole role = role_of(term);
      bool& counts = role == SymbolRole::kPast ? counts_past : counts_tokens;
      const bool is_count = role == SymbolRole::kPast || role == SymbolRole::kTokens;
      if (!is_count || term.coefficient != 1 || counts) return false;
      counts = true;
    }
    return end.constant == 0 || (end.constant == 1 && !counts_tokens);
  }

  const Graph& graph_;
  std::vector<bool> whole_;  // values that are a buffer, as far as is known with all its slots
};

}  // namespace

bool stays_in_tokens(const Graph& graph) {
  return Reach(graph).stays();
}

}  // namespace djinn::srg
