// SPDX-License-Identifier: Apache-2.0

// What runs of a captured graph are given: values for its symbols, weights, and bytes for what it
// binds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernel/exec/convert.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/srg/captures_for_tests.h"
#include "kernel/srg/expr.h"

namespace djinn::exec {

inline bool is_decode(const srg::Capture& capture) {
  return capture.name.ends_with(".decode");
}

// Of a run: its symbols, and where its tokens are.
struct Point {
  std::vector<int64_t> symbols;
  int64_t begin = 0, end = 0;
};

// As near to so many tokens behind so many as the graph may be run.
inline Point point_of(const srg::Graph& graph, int64_t tokens, int64_t past,
                      int64_t capacity = 61) {
  Point point;
  for (const srg::Symbol& symbol : graph.symbols) {
    const bool is_past = symbol.role == srg::SymbolRole::kPast;
    const bool is_tokens = symbol.role == srg::SymbolRole::kTokens;
    const int64_t wanted = is_past ? past : is_tokens ? tokens : capacity;
    point.symbols.push_back(std::clamp(wanted, symbol.min, symbol.max));
    if (is_past) past = point.symbols.back();
    if (is_tokens) tokens = point.symbols.back();
  }
  point.begin = past;
  point.end = past + tokens;
  return point;
}

inline int64_t past_of(const srg::Graph& graph, std::span<const int64_t> symbols) {
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (graph.symbols[i].role == srg::SymbolRole::kPast) return symbols[i];
  }
  return 0;
}

// Of a token, or of so many of a prompt.
inline Point point_of(const srg::Capture& capture, int64_t tokens) {
  return is_decode(capture) ? point_of(capture.graph, 1, 5) : point_of(capture.graph, tokens, 0);
}

// How many elements a view reaches from its storage's start on.
inline int64_t reach_of(const srg::Value& view, std::span<const int64_t> symbols) {
  int64_t last = *evaluate(view.offset, symbols), dense = 1;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    const int64_t size = *evaluate(view.sizes[d], symbols);
    last += (size - 1) * (view.strides.empty() ? dense : *evaluate(view.strides[d], symbols));
    dense *= size;
  }
  return last + 1;
}

// Of how many things a node chooses by a value, as far as that is known.
inline std::optional<int64_t> choices_of(const srg::Graph& graph, const srg::Node& node,
                                         srg::ValueId by) {
  const auto& given = node.arguments;
  const auto is_by = [&](size_t i) {
    const auto* const value = std::get_if<srg::ValueRef>(&given[i].value);
    return value != nullptr && value->id == by;
  };
  std::optional<int64_t> dimension;
  if (node.op == "aten::embedding" && is_by(1)) dimension = 0;
  if (node.op == "aten::gather" && is_by(2)) {
    dimension = std::get<srg::Expr>(given[1].value).constant;
  }
  if (node.op == "aten::index.Tensor") {
    const auto& indices = std::get<srg::ValueList>(given[1].value).ids;
    const auto at = std::ranges::find(indices, std::optional(by));
    if (at != indices.end()) dimension = at - indices.begin();
  }
  if (!dimension) return std::nullopt;
  const auto& sizes = graph.values[std::get<srg::ValueRef>(given[0].value).id].sizes;
  if (*dimension < 0 || *dimension >= std::ssize(sizes) || !sizes[*dimension].is_constant()) {
    return std::nullopt;
  }
  return sizes[*dimension].constant;
}

// Likewise a graph by a storage's whole numbers, themselves or as they are gathered; 1 where it
// chooses nothing by them.
inline int64_t choices_of(const srg::Graph& graph, srg::StorageIndex storage) {
  std::set<srg::ValueId> chosen_by;
  for (srg::ValueId id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].storage == storage) chosen_by.insert(id);
  }
  std::optional<int64_t> least;
  for (const srg::Node& node : graph.nodes) {
    for (const srg::ValueId by : chosen_by) {
      const std::optional<int64_t> choices = choices_of(graph, node, by);
      if (choices) least = std::min(least.value_or(*choices), *choices);
    }
    if (node.op != "aten::gather") continue;
    const srg::ValueId from = std::get<srg::ValueRef>(node.arguments[0].value).id;
    if (chosen_by.contains(from)) chosen_by.insert(node.outputs[0]);
  }
  return least.value_or(1);
}

// No model of the zoo has fewer tokens, and none of these means an image or sound.
constexpr int64_t kTokenIds = 100;

// Of a storage: token ids are any, positions count up from the past on, and so do others that were
// captured, positions and kinds of tokens among them, as far as there are things to choose from.
inline std::vector<int64_t> whole_numbers(const srg::Graph& graph, srg::StorageIndex storage,
                                          std::span<const int64_t> symbols, int64_t elements,
                                          uint64_t seed) {
  const srg::Storage& of = graph.storages[storage];
  std::vector<int64_t> numbers(elements);
  if (of.role == srg::InputRole::kPositions) {
    std::iota(numbers.begin(), numbers.end(), past_of(graph, symbols));
    return numbers;
  }
  const bool is_token = of.role == srg::InputRole::kTokenIds;
  const int64_t choices = is_token ? kTokenIds : choices_of(graph, storage);
  const at::Tensor any = noise({elements}, seed);
  for (int64_t i = 0; i < elements; ++i) {
    const bool is_any = is_token || of.name.starts_with("given");
    const double share = (any.const_data_ptr<float>()[i] + 1.0) / 2;
    numbers[i] = is_any ? static_cast<int64_t>(share * static_cast<double>(choices)) : i % choices;
  }
  return numbers;
}

// Of one storage. seed: of its numbers. Masks hide nothing, and a number without dimensions is 1:
// all that it multiplies would be nothing.
inline at::Tensor filled(const srg::Graph& graph, srg::StorageIndex storage,
                         std::span<const int64_t> symbols, uint64_t seed) {
  DType dtype = DType::kInvalid;
  int64_t elements = 0;
  bool is_number = false;
  for (const srg::Value& value : graph.values) {
    if (value.storage != storage) continue;
    dtype = value.dtype;
    is_number = is_number || value.sizes.empty();
    elements = std::max(elements, reach_of(value, symbols));
  }
  if (elements == 0) return {};
  const at::ScalarType type = *to_torch(dtype);
  if (at::isFloatingType(type)) return noise({elements}, seed, type);
  const bool is_one = is_number || type == at::kBool;
  return int64s({elements}, is_one ? std::vector<int64_t>(elements, 1)
                                   : whole_numbers(graph, storage, symbols, elements, seed))
      .to(type);
}

struct Given {
  std::map<std::string, at::Tensor> weights;
  std::vector<at::Tensor> bound;  // by storage; undefined ones for weights

  // For one run: it may write them.
  [[nodiscard]] std::vector<at::Tensor> copy() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& one : bound) copies.push_back(one.defined() ? one.clone() : one);
    return copies;
  }
};

// seed: of what is bound; weights are always the same.
inline Given given_to(const srg::Graph& graph, std::span<const int64_t> symbols,
                      uint64_t seed = 0) {
  Given given;
  for (srg::StorageIndex i = 0; i < graph.storages.size(); ++i) {
    const bool is_weight = graph.storages[i].kind == srg::StorageKind::kWeight;
    const at::Tensor tensor = filled(graph, i, symbols, i + 1 + (is_weight ? 0 : seed));
    given.bound.push_back(is_weight ? at::Tensor() : tensor);
    if (is_weight) given.weights[graph.storages[i].name] = tensor;
  }
  return given;
}

// With each of these dtypes another one.
inline srg::Capture in_dtype(const srg::Capture& capture, std::vector<std::string> narrow,
                             const std::string& wide) {
  std::string text = srg::print_text(capture.graph);
  for (const std::string& one : narrow) {
    for (size_t at = 0; (at = text.find(one, at)) != std::string::npos;) {
      text.replace(at, one.size(), wide);
    }
  }
  return {capture.name, *srg::parse_text(text)};
}
// In float32 a mistake is larger than what is rounded.
inline srg::Capture in_float32(const srg::Capture& capture) {
  return in_dtype(capture, {"bfloat16"}, "float32");
}
inline srg::Capture in_float64(const srg::Capture& capture) {
  return in_dtype(capture, {"bfloat16", "float32"}, "float64");
}

// The same numbers, for a graph in float64.
inline Given in_float64(Given given) {
  const auto widen = [](at::Tensor& one) {
    if (one.defined() && at::isFloatingType(one.scalar_type())) one = one.to(at::kDouble);
  };
  for (auto& [name, tensor] : given.weights) widen(tensor);
  for (at::Tensor& tensor : given.bound) widen(tensor);
  return given;
}

}  // namespace djinn::exec
