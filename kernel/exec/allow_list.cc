// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/allow_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <unordered_map>

#include "kernel/exec/one_thread.h"
#include "kernel/exec/own_operators.h"

namespace djinn::exec {
namespace {

struct Instead {
  std::string_view prefix;
  std::string_view advice;
};

constexpr std::array<Instead, 8> kInstead{{
    {"aten::empty", "It would give uninitialised memory; use aten::zeros."},
    {"aten::new_empty", "It would give uninitialised memory; use aten::new_zeros."},
    {"aten::resize", "It would give uninitialised memory; use aten::cat or aten::slice.Tensor."},
    {"aten::rand", "Random operators carry a seed and an offset; use those of djinn::."},
    {"aten::bernoulli", "Random operators carry a seed and an offset; use those of djinn::."},
    {"aten::multinomial", "Random operators carry a seed and an offset; use those of djinn::."},
    {"aten::dropout", "Use djinn::bernoulli and aten::mul.Tensor."},
    {"aten::item", "A graph gives tensors only; make the value an output."},
}};

// Gives the first overload of the operator that a graph may name, or an empty name if there is
// none.
std::string_view overload_of(std::string_view op) {
  const std::string begin = std::string(op.substr(0, op.find('.'))) + '.';
  const auto operators = srg::allowed_operators();
  const auto of_tensors = std::ranges::find(operators, begin + "Tensor");
  if (of_tensors != operators.end()) return *of_tensors;
  const auto found =
      std::ranges::find_if(operators, [&](std::string_view one) { return one.starts_with(begin); });
  return found == operators.end() ? std::string_view() : *found;
}

std::string advice_for(std::string_view qualified) {
  for (const Instead& row : kInstead) {
    if (qualified.starts_with(row.prefix)) return std::string(row.advice);
  }
  const std::string_view overload = overload_of(qualified);
  if (overload.empty()) return "It is not on the allow-list.";
  return fmt::format("It is not on the allow-list. Did you mean {}?", overload);
}

Return return_of(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) return {};
  Return found{.is_aliased = true};
  for (uint32_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const theirs = schema.arguments()[i].alias_info();
    if (theirs == nullptr || theirs->beforeSets() != result.alias_info()->beforeSets()) continue;
    found.argument = i;
    found.is_argument = theirs->isWrite();
    return found;
  }
  return found;
}

Operator facts_of(c10::OperatorHandle handle, std::string_view qualified) {
  Operator facts(handle);
  const c10::FunctionSchema& schema = handle.schema();
  facts.shape_rule = shape_rule_of(qualified);
  facts.guard = guard_of(qualified);
  facts.list_count = list_count_of(qualified);
  for (const c10::Argument& result : schema.returns()) {
    facts.returns.push_back(return_of(schema, result));
  }
  facts.list_output =
      schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
  facts.is_kv_append = qualified == "djinn::kv_append";
  facts.is_as_strided = qualified == "aten::as_strided";
  facts.keeps_bits = keeps_bits(qualified);
  facts.most_threads = most_threads(qualified);
  facts.joins = qualified == "djinn::linear_rows" || qualified == "djinn::linears" ||
                qualified == "djinn::grouped_rows";
  return facts;
}

// What kernel/srg/rewrite makes. Their arguments need no guards: each does what the operator does
// that it stands for, or calls it.
constexpr auto kInternal = std::to_array<std::string_view>(
    {"djinn::attend", "djinn::attend_biased", "djinn::embedding_rows", "djinn::gate",
     "djinn::grouped_rows", "djinn::layer_norm", "djinn::linear_rows", "djinn::linears",
     "djinn::rms_norm", "djinn::rope"});

using Table = std::unordered_map<std::string_view, Operator>;

Table make_table(std::span<const std::string_view> operators) {
  register_operators();
  Table table;
  for (const std::string_view qualified : operators) {
    const size_t dot = qualified.find('.');
    const bool overloaded = dot != std::string_view::npos;
    const c10::OperatorName name(std::string(qualified.substr(0, dot)),
                                 overloaded ? std::string(qualified.substr(dot + 1)) : "");
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (found) table.emplace(qualified, facts_of(*found, qualified));
  }
  return table;
}

}  // namespace

Result<const Operator*> resolve_operator(std::string_view qualified, Author author) {
  // The dispatcher is global to the process, and what it says of an operator does not change.
  static const Table table = make_table(allowed_operators());
  static const Table internal = make_table(kInternal);
  if (author == Author::kRewrite) {
    if (const auto own = internal.find(qualified); own != internal.end()) return &own->second;
  }
  const auto found = table.find(qualified);
  if (found != table.end()) return &found->second;
  if (!srg::is_allowed(qualified)) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("Operator {} is not offered. {}", qualified.substr(0, 100),
                             advice_for(qualified))};
  }
  return Error{ErrorCode::kUnsupported,
               fmt::format("This build of LibTorch has no operator {}.", qualified)};
}

}  // namespace djinn::exec
