// SPDX-License-Identifier: Apache-2.0

// This measures what the interpreter adds to an operator: a chain of additions of eight numbers
// runs through a planned lane, through malloc, and by direct calls.
#include <benchmark/benchmark.h>

#include "kernel/exec/attention_for_tests.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/srg/verify.h"

namespace djinn::exec {
namespace {

constexpr int64_t kChain = 400;

// Makes the value claim all of its layout, as a recorder does.
void claim(srg::Graph& graph, srg::ValueRef ref, std::vector<srg::Expr> sizes) {
  srg::Value& value = graph.values[ref.id];
  value.name.clear();
  value.dtype = DType::kFloat32;
  value.claims_sizes = true;
  value.strides.assign(sizes.size(), srg::Expr(1));
  for (size_t i = sizes.size(); i-- > 1;) {
    value.strides[i - 1] = srg::Expr(value.strides[i].constant * sizes[i].constant);
  }
  value.sizes = std::move(sizes);
}

srg::Graph chain(bool claimed = false) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {8});
  auto y = x;
  for (int64_t i = 0; i < kChain; ++i) {
    y = b.call("aten::add.Tensor", {arg(y), arg(x)});
    if (claimed) claim(b.graph, y, {8});
  }
  b.output(y);
  return std::move(b.graph);
}

void per_operator(benchmark::State& state) {
  state.counters["per_operator"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kChain),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void interpreted_chain(benchmark::State& state) {
  World world({}, state.range(0) != 0);
  const at::Tensor x = noise({8}, 1);
  const bool ready = world.admit(chain(state.range(1) != 0)).ok() && world.run({}, {x}).ok();
  if (!ready) state.SkipWithError("the chain does not run");
  for (auto _ : state) benchmark::DoNotOptimize(world.run({}, {x}).ok());
  per_operator(state);
}
BENCHMARK(interpreted_chain)
    ->ArgNames({"planned", "claimed"})
    ->Args({0, 0})
    ->Args({1, 0})
    ->Args({1, 1});

// Runs decode steps of a layer for one owner, or for two in turn: then each step cleans the slab.
void decode_of_owners(benchmark::State& state) {
  const AttentionShape shape{.heads = 8, .kv_heads = 4, .dim = 64, .capacity = 512};
  World world(attention_weights(shape), true);
  const at::Tensor keys = at::zeros({1, shape.kv_heads, shape.capacity, shape.dim});
  const at::Tensor values = at::zeros({1, shape.kv_heads, shape.capacity, shape.dim});
  const at::Tensor x = noise({1, 1, shape.hidden()}, 9);
  const auto step = [&] { return world.run({1, 300}, {x, keys, values}, true).ok(); };
  if (!world.admit(attention_graph(shape)).ok() || !step()) state.SkipWithError("it does not run");
  uint64_t turn = 0;
  for (auto _ : state) {
    world.lane->set_owner({.id = ++turn % static_cast<uint64_t>(state.range(0))});
    benchmark::DoNotOptimize(step());
  }
}
BENCHMARK(decode_of_owners)->ArgName("owners")->Arg(1)->Arg(2);

void direct_chain(benchmark::State& state) {
  World world({});
  c10::InferenceMode inference_mode;
  const at::Tensor x = noise({8}, 1);
  for (auto _ : state) {
    at::Tensor y = x;
    for (int64_t i = 0; i < kChain; ++i) y = y.add(x);
    benchmark::DoNotOptimize(y.const_data_ptr());
  }
  per_operator(state);
}
BENCHMARK(direct_chain);

void admission_of_attention(benchmark::State& state) {
  const AttentionShape shape;
  World world(attention_weights(shape));
  const srg::Graph graph = attention_graph(shape);
  for (auto _ : state) benchmark::DoNotOptimize(world.admit(graph).ok());
}
BENCHMARK(admission_of_attention)->Unit(benchmark::kMicrosecond);

// This graph is like those that a recorder sends: it has a dozen kinds of nodes.
constexpr int64_t kRecorded = 200;

srg::Graph recorded() {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4, 32});
  const auto w = b.input("w", DType::kFloat32, {32, 32});
  const auto g = b.input("g", DType::kFloat32, {32});
  auto y = x;
  const auto next = [&](const char* op, std::vector<srg::Argument> more) {
    more.insert(more.begin(), arg(y));
    y = b.call(op, std::move(more));
    claim(b.graph, y, {4, 32});
  };
  for (int64_t i = 0; i < kRecorded / 10; ++i) {
    next("aten::layer_norm", {integers({32}), arg(g), arg(g), arg(1e-5)});
    next("aten::linear", {arg(w), arg(g)});
    next("aten::gelu", {arg("approximate", std::string("tanh"))});
    next("aten::add.Tensor", {arg(x)});
    next("aten::mul.Tensor", {arg(0.5)});
    const auto part =
        b.call("aten::as_strided", {arg(y), integers({4, 16}), integers({32, 1}), integer(16)});
    b.call("aten::mul_.Tensor", {arg(part), arg(2.0)});
    next("aten::clone", {});
    next("aten::softmax.int", {integer(-1)});
    next("aten::sub.Tensor", {arg(x)});
  }
  b.output(y);
  return std::move(b.graph);
}

void per_recorded_operator(benchmark::State& state) {
  state.counters["per_operator"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kRecorded),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void admission_of_a_recorded_graph(benchmark::State& state) {
  World world({});
  const srg::Graph graph = recorded();
  const Status admitted = world.admit(graph);
  if (!admitted) state.SkipWithError(admitted.error().message.c_str());
  for (auto _ : state) {
    state.PauseTiming();
    srg::Graph given = graph;
    state.ResumeTiming();
    benchmark::DoNotOptimize(world.admit(std::move(given)).ok());
  }
  per_recorded_operator(state);
}
BENCHMARK(admission_of_a_recorded_graph)->Unit(benchmark::kMicrosecond);

void verification_of_a_recorded_graph(benchmark::State& state) {
  const srg::Graph graph = recorded();
  for (auto _ : state) benchmark::DoNotOptimize(srg::verify(graph).ok());
  per_recorded_operator(state);
}
BENCHMARK(verification_of_a_recorded_graph)->Unit(benchmark::kMicrosecond);

void run_of_a_recorded_graph(benchmark::State& state) {
  World world({});
  const std::vector<at::Tensor> inputs{noise({4, 32}, 1), noise({32, 32}, 2), noise({32}, 3)};
  const bool ready = world.admit(recorded()).ok() && world.run({}, inputs).ok();
  if (!ready) state.SkipWithError("the graph does not run");
  for (auto _ : state) benchmark::DoNotOptimize(world.run({}, inputs).ok());
  per_recorded_operator(state);
}
BENCHMARK(run_of_a_recorded_graph)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace djinn::exec

BENCHMARK_MAIN();
