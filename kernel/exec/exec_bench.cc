// What the interpreter adds to an operator: a chain of additions of eight numbers, through a
// planned lane, through malloc, and by direct calls.
#include <benchmark/benchmark.h>

#include "kernel/exec/attention_for_tests.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

constexpr int64_t kChain = 400;

srg::Graph chain() {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {8});
  auto y = x;
  for (int64_t i = 0; i < kChain; ++i) y = b.call("aten::add.Tensor", {arg(y), arg(x)});
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
  const bool ready = world.admit(chain()).ok() && world.run({}, {x}).ok();
  if (!ready) state.SkipWithError("the chain does not run");
  for (auto _ : state) benchmark::DoNotOptimize(world.run({}, {x}).ok());
  per_operator(state);
}
BENCHMARK(interpreted_chain)->ArgName("planned")->Arg(0)->Arg(1);

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

}  // namespace
}  // namespace djinn::exec

BENCHMARK_MAIN();
