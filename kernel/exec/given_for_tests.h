// SPDX-License-Identifier: Apache-2.0

// What runs of a captured graph are given: values for its symbols, weights, and bytes for what it
// binds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
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

// Of one storage. seed: of its numbers. Whole ones are zeros, but for one without dimensions: all
// that it multiplies would be nothing.
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
  if (!at::isFloatingType(type)) {
    const std::vector<int64_t> whole(elements, is_number ? 1 : 0);
    return int64s({elements}, whole).to(type);
  }
  return noise({elements}, seed, type);
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

// The same in float32, where a mistake is larger than what is rounded.
inline srg::Capture in_float32(const srg::Capture& capture) {
  std::string text = srg::print_text(capture.graph);
  const std::string narrow = "bfloat16";
  for (size_t at = 0; (at = text.find(narrow, at)) != std::string::npos;) {
    text.replace(at, narrow.size(), "float32");
  }
  return {capture.name, *srg::parse_text(text)};
}

}  // namespace djinn::exec
