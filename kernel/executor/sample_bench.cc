// SPDX-License-Identifier: Apache-2.0

// What drawing a token takes, of sorting the row of logits that it is drawn from: a vocabulary of
// 151,936 tokens.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <vector>

#include "kernel/executor/sample.h"

namespace djinn::exec {
namespace {

using std::chrono::steady_clock;

constexpr size_t kVocabulary = 151'936;
constexpr uint32_t kSeed = 7;

std::vector<float> row_of_logits() {
  std::mt19937 draw(kSeed);
  std::normal_distribution<float> distribution(0.0f, 3.0f);
  std::vector<float> row(kVocabulary);
  for (float& logit : row) logit = distribution(draw);
  return row;
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

template <typename Work>
double seconds_of(const Work& work) {
  const auto begin = steady_clock::now();
  work();
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// The arms take turns, each with a copy of the row that it may overwrite.
void draw_of_sort(benchmark::State& state, uint32_t top_k, float top_p) {
  const std::vector<float> logits = row_of_logits();
  SamplingRule rule;
  rule.greedy = false;
  rule.top_k = top_k;
  rule.top_p = top_p;
  std::vector<double> drawing, sorting;
  uint64_t offset = 0;
  for (auto _ : state) {
    std::vector<float> row = logits;
    drawing.push_back(seconds_of([&] {
      if (!sample(row, {}, rule, offset++)) state.SkipWithError("nothing was drawn");
    }));
    row = logits;
    sorting.push_back(seconds_of([&] { std::ranges::sort(row, std::greater<>()); }));
    benchmark::DoNotOptimize(row.data());
    state.SetIterationTime(drawing.back());
  }
  state.counters["of_sort"] = median(drawing) / median(sorting);
}

constexpr uint32_t kTopK = 50;  // as transformers has it where nothing is said
constexpr float kTopP = 0.9f;

void measure(benchmark::internal::Benchmark* benchmark) {
  benchmark->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(50);
}
BENCHMARK_CAPTURE(draw_of_sort, top_k, kTopK, 1.0f)->Name("sample/top_k")->Apply(measure);
BENCHMARK_CAPTURE(draw_of_sort, top_p, 0, kTopP)->Name("sample/top_p")->Apply(measure);
BENCHMARK_CAPTURE(draw_of_sort, both, kTopK, kTopP)->Name("sample/top_k_top_p")->Apply(measure);

}  // namespace
}  // namespace djinn::exec

BENCHMARK_MAIN();
