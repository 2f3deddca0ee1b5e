// SPDX-License-Identifier: Apache-2.0

// Captures of real models as fast programs: what the passes make of them is admitted, and gives
// what the exact form gives, but for rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/program.h"
#include "kernel/srg/captures_for_tests.h"
#include "kernel/srg/expr.h"

namespace djinn::exec {
namespace {

// Where they run: a token after some.
constexpr int64_t kPast = 5, kCapacity = 29;

std::vector<int64_t> symbols_of(const srg::Graph& graph, int64_t tokens, int64_t past) {
  std::vector<int64_t> values;
  for (const srg::Symbol& symbol : graph.symbols) {
    const int64_t wanted = symbol.role == srg::SymbolRole::kTokens ? tokens
                           : symbol.role == srg::SymbolRole::kPast ? past
                                                                   : kCapacity;
    values.push_back(std::clamp(wanted, symbol.min, symbol.max));
  }
  return values;
}

// How many elements a view reaches from its storage's start on.
int64_t reach_of(const srg::Value& view, std::span<const int64_t> symbols) {
  int64_t last = *evaluate(view.offset, symbols), dense = 1;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    const int64_t size = *evaluate(view.sizes[d], symbols);
    last += (size - 1) * (view.strides.empty() ? dense : *evaluate(view.strides[d], symbols));
    dense *= size;
  }
  return last + 1;
}

struct Bytes {
  DType dtype = DType::kInvalid;
  int64_t elements = 0;
  bool is_number = false;  // without dimensions
};

// By storage.
std::vector<Bytes> storages_of(const srg::Graph& graph, std::span<const int64_t> symbols) {
  std::vector<Bytes> all(graph.storages.size());
  for (const srg::Value& value : graph.values) {
    if (value.storage == srg::kLocalStorage) continue;
    Bytes& one = all[value.storage];
    one.dtype = value.dtype;
    one.is_number = one.is_number || value.sizes.empty();
    one.elements = std::max(one.elements, reach_of(value, symbols));
  }
  return all;
}

// Whole numbers are zeros, but for one without dimensions: all that it multiplies would be nothing.
at::Tensor filled(const Bytes& bytes, uint64_t seed) {
  const at::ScalarType type = *to_torch(bytes.dtype);
  if (!at::isFloatingType(type)) {
    const std::vector<int64_t> whole(bytes.elements, bytes.is_number ? 1 : 0);
    return int64s({bytes.elements}, whole).to(type);
  }
  return noise({bytes.elements}, seed, type);
}

struct Given {
  std::map<std::string, at::Tensor> weights;
  std::vector<at::Tensor> bound;  // by storage; undefined ones for weights
};

Given given_to(const srg::Graph& graph, std::span<const int64_t> symbols) {
  Given given;
  const std::vector<Bytes> storages = storages_of(graph, symbols);
  for (size_t i = 0; i < storages.size(); ++i) {
    const at::Tensor tensor = filled(storages[i], i + 1);
    const bool is_weight = graph.storages[i].kind == srg::StorageKind::kWeight;
    given.bound.push_back(is_weight ? at::Tensor() : tensor);
    if (is_weight) given.weights[graph.storages[i].name] = tensor;
  }
  return given;
}

at::Tensor last_logits(World& world, srg::Graph graph, srg::Numerics numerics, const Given& given,
                       int64_t tokens, int64_t past) {
  graph.numerics = numerics;
  const std::vector<int64_t> symbols = symbols_of(graph, tokens, past);
  EXPECT_EQ(message_of(world.admit(std::move(graph))), "");
  std::vector<at::Tensor> bound;
  for (const at::Tensor& one : given.bound) bound.push_back(one.defined() ? one.clone() : one);
  EXPECT_EQ(message_of(world.run_at(past, past + tokens, symbols, bound)), "");
  return world.output(0).to(at::kDouble);
}

double relative_distance(const srg::Capture& capture) {
  const bool is_decode = capture.name.ends_with(".decode");
  const int64_t tokens = is_decode ? 1 : 7, past = is_decode ? kPast : 0;
  const Given given = given_to(capture.graph, symbols_of(capture.graph, tokens, past));
  World world(given.weights);
  const at::Tensor exact =
      last_logits(world, capture.graph, srg::Numerics::kExact, given, tokens, past);
  const at::Tensor fast =
      last_logits(world, capture.graph, srg::Numerics::kFast, given, tokens, past);
  const auto& program = dynamic_cast<const CpuProgram&>(*world.program);
  // What only hands a prompt's results over has no weights, and nothing to compute.
  EXPECT_EQ(program.fast_nodes() > 0, !given.weights.empty()) << capture.name;
  return distance(fast, exact) / distance(exact, at::zeros(exact.sizes(), at::kDouble));
}

// The same in float32, where a mistake is larger than what is rounded.
srg::Capture in_float32(const srg::Capture& capture) {
  std::string text = srg::print_text(capture.graph);
  const std::string narrow = "bfloat16";
  for (size_t at = 0; (at = text.find(narrow, at)) != std::string::npos;) {
    text.replace(at, narrow.size(), "float32");
  }
  return {capture.name, *srg::parse_text(text)};
}

TEST(FastCaptures, ci_give_what_they_give_exactly_but_for_rounding) {
  size_t narrow = 0;
  const std::vector<srg::Capture> captures = srg::read_captures();
  for (const srg::Capture& capture : captures) {
    EXPECT_LT(relative_distance(in_float32(capture)), 1e-4) << capture.name;
    narrow += relative_distance(capture) < 0.1 ? 1 : 0;
  }
  // One goes through its layers so often that what bfloat16 rounds grows to anything.
  EXPECT_GE(narrow + 2, captures.size());
}

// What the results of a run hold is known before it, at its own symbols. Kernels hold more for
// themselves. The second run follows the plan.
void expect_held_as_foreseen(const srg::Capture& capture, srg::Numerics numerics, int64_t tokens,
                             int64_t past) {
  srg::Graph graph = capture.graph;
  graph.numerics = numerics;
  const std::vector<int64_t> symbols = symbols_of(graph, tokens, past);
  const Given given = given_to(graph, symbols);
  World world(given.weights, true);
  ASSERT_EQ(message_of(world.admit(std::move(graph))), "");
  for (int run = 0; run < 2; ++run) {
    ASSERT_EQ(message_of(world.run_at(past, past + tokens, symbols, given.bound)), "");
  }
  const uint64_t foreseen = world.program->activation_bytes_at(symbols);
  EXPECT_GT(foreseen, 0u);
  EXPECT_LE(foreseen, world.program->activation_bytes_estimate());
  EXPECT_LE(foreseen, world.lane->stats().peak_live_bytes) << capture.name << " of " << tokens;
}

TEST(FastCaptures, ci_hold_what_was_foreseen_at_their_symbols) {
  for (const srg::Capture& capture : srg::read_captures()) {
    for (const srg::Numerics numerics : {srg::Numerics::kExact, srg::Numerics::kFast}) {
      const bool is_decode = capture.name.ends_with(".decode");
      expect_held_as_foreseen(capture, numerics, is_decode ? 1 : 7, is_decode ? kPast : 0);
      if (!is_decode) expect_held_as_foreseen(capture, numerics, 20, 0);
    }
  }
}

}  // namespace
}  // namespace djinn::exec
