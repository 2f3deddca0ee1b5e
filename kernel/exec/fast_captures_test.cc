// SPDX-License-Identifier: Apache-2.0

// Captures of real models as fast programs: what the passes make of them is admitted, and gives
// what the exact form gives, but for rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/exec/given_for_tests.h"
#include "kernel/exec/plan_cache.h"
#include "kernel/exec/program.h"

namespace djinn::exec {
namespace {

// What a run makes, and what it leaves in what it was given, keys and values among it.
std::vector<at::Tensor> results(World& world, srg::Graph graph, srg::Numerics numerics,
                                const Given& given, const Point& at) {
  graph.numerics = numerics;
  std::vector<at::Tensor> all = given.copy();
  EXPECT_EQ(message_of(world.admit(std::move(graph))), "");
  EXPECT_EQ(message_of(world.run_at(at.begin, at.end, at.symbols, all)), "");
  for (size_t i = 0; i < world.lane->outputs().size(); ++i) all.push_back(world.output(i));
  return all;
}

// Of the result that differs most. One that is nothing beside the others is rounding alone, as of a
// key's bias the gradient, which softmax makes zero: it has to be nothing again.
double relative_distance(const std::vector<at::Tensor>& found,
                         const std::vector<at::Tensor>& expected) {
  double largest = 0, most = 0;
  std::vector<double> lengths;
  for (const at::Tensor& one : expected) {
    const bool is_there = one.defined();
    lengths.push_back(is_there ? distance(one, at::zeros(one.sizes(), at::kDouble)) : 0);
    largest = std::max(largest, lengths.back());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!expected[i].defined() || largest == 0) continue;
    const bool is_nothing = lengths[i] < 1e-6 * largest;
    most = std::max(most, distance(found[i], expected[i]) / (is_nothing ? largest : lengths[i]));
  }
  return most;
}

struct Distances {
  double apart = 0;                    // of fast from exact
  double fast_off = 0, exact_off = 0;  // from what float64 gives
};

// with_truth: the last two, too.
Distances distances_of(const srg::Capture& capture, bool with_truth) {
  const Point at = point_of(capture, 7);
  const Given given = given_to(capture.graph, at.symbols);
  World world(given.weights);
  const auto exact = results(world, capture.graph, srg::Numerics::kExact, given, at);
  const auto fast = results(world, capture.graph, srg::Numerics::kFast, given, at);
  const auto& program = dynamic_cast<const CpuProgram&>(*world.program);
  // What only hands a prompt's results over has no weights, and nothing to compute.
  EXPECT_EQ(program.fast_nodes() > 0, !given.weights.empty()) << capture.name;
  Distances distances{relative_distance(fast, exact)};
  if (!with_truth) return distances;
  const Given same = in_float64(given);
  World precise(same.weights);
  const auto truth = results(precise, in_float64(capture).graph, srg::Numerics::kExact, same, at);
  distances.fast_off = relative_distance(fast, truth);
  distances.exact_off = relative_distance(exact, truth);
  return distances;
}

// What is rounded grows in these: HrmText computes sixteen layers, of a model of two, and Zamba as
// many states as it has layers. They are farther apart than others, but what is fast is about as
// near to what float64 gives as what is exact, and mostly nearer.
constexpr std::array kGrowing = {"HrmTextForCausalLM.decode", "HrmTextForCausalLM.prefill",
                                 "ZambaForCausalLM.decode"};

void expect_near(const srg::Capture& capture, double bound) {
  const bool grows = std::ranges::find(kGrowing, capture.name) != kGrowing.end();
  const Distances distances = distances_of(capture, grows);
  if (!grows) {
    EXPECT_LT(distances.apart, bound) << capture.name;
    return;
  }
  EXPECT_LT(distances.fast_off, std::max(bound, 1.5 * distances.exact_off)) << capture.name;
}

TEST(FastCaptures, ci_give_what_they_give_exactly_but_for_rounding) {
  for (const srg::Capture& capture : srg::read_captures()) {
    expect_near(in_float32(capture), 1e-4);
    expect_near(capture, 0.1);
  }
}

TEST(FastCaptures, ci_whole_forward_passes_give_what_they_give_exactly_but_for_rounding) {
  for (const srg::Capture& capture : srg::read_captures(srg::forwards_folder())) {
    expect_near(capture, 1e-4);
  }
}

// --- decode steps together

at::Tensor output_of(const OutputView& view) {
  at::Tensor tensor = at::zeros(view.sizes, *to_torch(view.dtype));
  const std::span<std::byte> bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()),
                                   tensor.nbytes());
  EXPECT_TRUE(copy_elements(view, bytes).ok());
  return tensor;
}

// Two members that decode with one program, each with keys and values of its own. Gives whether
// they do it together; then each has, and leaves, what it does alone.
bool runs_together(const srg::Capture& capture) {
  const Point at = point_of(capture, 1);
  const std::array<Given, 2> given{given_to(capture.graph, at.symbols),
                                   given_to(capture.graph, at.symbols, 1000)};
  World world(given[0].weights, true);
  srg::Graph graph = capture.graph;
  graph.numerics = srg::Numerics::kFast;
  EXPECT_EQ(message_of(world.admit(std::move(graph))), "");
  // As the worker asks (ProgramTable::joins_steps).
  if (world.program->fast_nodes() == 0 || !world.program->writes_nothing()) return false;
  std::array<std::vector<at::Tensor>, 2> alone, left, outputs;
  std::array<std::vector<StorageBinding>, 2> bindings;
  std::vector<RunTogether> runs;
  for (size_t i = 0; i < 2; ++i) {
    alone[i] = given[i].copy();
    EXPECT_EQ(message_of(world.run_at(at.begin, at.end, at.symbols, alone[i])), "");
    for (const OutputView& view : world.lane->outputs()) outputs[i].push_back(output_of(view));
    left[i] = given[i].copy();
    for (const at::Tensor& one : left[i]) bindings[i].push_back(World::binding_of(one, true));
    bindings[i].resize(world.program->graph().storages.size());
    runs.push_back({{at.symbols, bindings[i], {}, at.begin, at.end}, {i + 1, UINT64_MAX}, nullptr});
  }
  const std::vector<bool> done = world.lane->run_together(*world.program, runs);
  if (done != std::vector<bool>(2, true)) return false;
  for (size_t i = 0; i < 2; ++i) {
    for (size_t k = 0; k < outputs[i].size(); ++k) {
      EXPECT_TRUE(same_bytes(output_of(world.lane->outputs_of(i)[k]), outputs[i][k]));
    }
    for (size_t k = 0; k < left[i].size(); ++k) {
      if (!left[i][k].defined()) continue;
      EXPECT_TRUE(same_bytes(left[i][k], alone[i][k]));
    }
  }
  return true;
}

// The others write states, which are refs, or need all threads or memory beside their plan, as
// those whose masks are given a number here that hides nothing.
TEST(FastCaptures,
     ci_decode_steps_of_seven_models_in_eight_are_computed_together_as_each_is_alone) {
  size_t together = 0, all = 0;
  std::string others;
  for (const srg::Capture& capture : srg::read_captures()) {
    if (!is_decode(capture)) continue;
    SCOPED_TRACE(capture.name);
    const bool it_does = runs_together(capture);
    ++all;
    together += it_does ? 1 : 0;
    if (!it_does) others += " " + capture.name;
  }
  EXPECT_GE(together * 8, all * 7) << "by themselves:" << others;
}

// --- memory

class Noting final : public HeapOwner {
 public:
  Outcome<void> allow(uint64_t) override { return {}; }
  void settle(uint64_t) override {}
  std::optional<Pending> prepare(uint64_t bytes) override {
    prepared.push_back(bytes);
    return std::nullopt;
  }
  std::vector<uint64_t> prepared;  // by run
};

// So much may be asked for beside 1.3 of what is held: captures are of models so small that what
// kernels take for themselves counts, and a lane's heap grows by 4 MiB (daemon/worker/heap.cc).
constexpr uint64_t kTinyBytes = uint64_t{128} << 10;

// At a bucket's top. The first run asks for what it will hold, before it begins. The second follows
// the plan, and asks for nothing beside it; where kernels take memory by what is in tensors, as
// products of experts that rows choose, the rehearsal with zeros has not seen it: then a run is
// recorded, and the one behind the next follows the plan.
void expect_held_as_foreseen(const srg::Capture& capture, srg::Numerics numerics, int64_t tokens) {
  srg::Graph graph = capture.graph;
  graph.numerics = numerics;
  const std::vector<int64_t> top = bucket_top(graph, point_of(capture, tokens).symbols);
  const Given given = given_to(graph, top);
  World world(given.weights, true);
  EXPECT_EQ(message_of(world.admit(std::move(graph))), "");
  Noting owner;
  LaneOptions options;
  options.threads = 2;
  options.grow_slab = world.slab.grow();
  options.heap = &owner;
  world.lane = *executor().make_lane(std::move(options));
  for (size_t run = 0; run < 2 + 2 * world.lane->stats().plan_misses; ++run) {
    EXPECT_EQ(message_of(world.run(top, given.bound, true)), "");
    ASSERT_LE(world.lane->stats().plan_misses, 1u);
  }
  const uint64_t foreseen = world.program->activation_bytes_at(top);
  const LaneStats stats = world.lane->stats();
  const uint64_t peak = stats.peak_live_bytes;
  EXPECT_GT(foreseen, 0u);
  EXPECT_LE(foreseen, world.program->activation_bytes_estimate());
  EXPECT_LE(foreseen, peak);
  ASSERT_GE(owner.prepared.size(), 2u);
  EXPECT_GE(owner.prepared[0], peak);
  EXPECT_LE(10 * owner.prepared[0], 13 * peak + 10 * kTinyBytes);
  EXPECT_EQ(owner.prepared.back(), 0u);
  EXPECT_GE(stats.planned_bytes, peak);
  EXPECT_LE(10 * stats.planned_bytes, 13 * peak);
}

class CapturesMemory : public ::testing::TestWithParam<std::tuple<bool, srg::Numerics>> {};

TEST_P(CapturesMemory, ci_a_first_run_asks_for_what_it_holds) {
  const auto [is_wide, numerics] = GetParam();
  for (const srg::Capture& capture : srg::read_captures()) {
    SCOPED_TRACE(capture.name);
    const srg::Capture it = is_wide ? in_float32(capture) : capture;
    expect_held_as_foreseen(it, numerics, 7);
    if (!is_decode(capture)) expect_held_as_foreseen(it, numerics, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CapturesMemory,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(srg::Numerics::kExact,
                                                              srg::Numerics::kFast)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param) ? "float32" : "as_captured") +
                                  (std::get<1>(one.param) == srg::Numerics::kExact ? "_exact"
                                                                                   : "_fast");
                         });

}  // namespace
}  // namespace djinn::exec
