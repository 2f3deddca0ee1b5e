// SPDX-License-Identifier: Apache-2.0

// A run that is set aside between two operators, with others' runs inside: all have the bytes that
// they have alone, and what each takes is counted, and given back.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernel/exec/attention_for_tests.h"
#include "kernel/exec/layer_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

constexpr int64_t kPausedElements = 5000;

// relu(neg(x)) + x, and its softmax.
srg::Graph recorded() {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {kPausedElements});
  const auto negated = b.call("aten::neg", {arg(x)});
  const auto cut = b.call("aten::relu", {arg(negated)});
  const auto sum = b.call("aten::add.Tensor", {arg(cut), arg(x)});
  b.output(b.call("aten::softmax.int", {arg(sum), integer(0)}));
  b.output(sum);
  return std::move(b.graph);
}

// x -= x * x in place, twice, as an optimizer does.
srg::Graph updating() {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {kPausedElements});
  for (int i = 0; i < 2; ++i) {
    const auto square = b.call("aten::mul.Tensor", {arg(x), arg(x)});
    b.call("aten::sub_.Tensor", {arg(x), arg(square)});
  }
  b.output(b.call("aten::neg", {arg(x)}));
  return std::move(b.graph);
}

struct NoneHeld final : HeapOwner {
  uint64_t most = 0;
  uint64_t kept = 0;
  Outcome<void> allow(uint64_t bytes) override {
    most = std::max(most, bytes);
    return {};
  }
  void settle(uint64_t) override {}
  void trim(uint64_t bytes) override { kept = bytes; }
};

class Pauses : public ::testing::Test {
 protected:
  explicit Pauses(at::ScalarType of_type = at::kFloat) : type(of_type) {
    LaneOptions options;
    options.threads = 2;
    options.grow_slab = world.slab.grow();
    options.heap = &heap;
    world.lane = *executor().make_lane(std::move(options));
    for (srg::Graph graph : {attention_graph(shape), recorded(), updating()}) {
      admit(std::move(graph));
    }
  }
  void admit(srg::Graph graph) {
    EXPECT_EQ(message_of(world.admit(std::move(graph))), "");
    programs.push_back(std::move(world.program));
  }
  Program& attention() { return *programs[0]; }
  std::map<std::string, at::Tensor> weights() const {
    std::map<std::string, at::Tensor> all = layer_weights(type);
    all.merge(attention_weights(shape));  // a layer has some of the same names and sizes
    return all;
  }

  // A prefill or a token; the caches get its keys and values.
  struct Call {
    at::Tensor x, keys, values;
    [[nodiscard]] int64_t tokens() const { return x.size(1); }
  };
  Call call_of(int64_t tokens, uint64_t seed) const {
    const auto cache = [&] {
      return at::zeros({1, shape.kv_heads, shape.capacity, shape.dim}, type);
    };
    return {noise({1, tokens, shape.hidden()}, seed, type), cache(), cache()};
  }
  std::string run(const Call& call) { return run(attention(), call); }
  std::string run(Program& program, const Call& call) {
    const std::vector<StorageBinding> bindings{World::binding_of(call.x, false),
                                               World::binding_of(call.keys, true),
                                               World::binding_of(call.values, true),
                                               {},
                                               {},
                                               {},
                                               {}};
    const std::vector<int64_t> symbols{call.tokens(), 0};
    return message_of(world.lane->run(program, {symbols, bindings, {}, 0, call.tokens()}));
  }
  std::string run(size_t program, const at::Tensor& x, bool once = false) {
    const std::vector<StorageBinding> bindings{World::binding_of(x, true)};
    return message_of(once ? world.lane->run_once(*programs[program], {{}, bindings})
                           : world.lane->run(*programs[program], {{}, bindings}));
  }
  void watch(std::function<bool(std::string_view)> pulse, uint64_t owner) {
    world.lane->set_owner({.id = owner});
    world.lane->set_pulse(std::move(pulse));
  }
  // Runs `one` with a pause at each operator in turn, in which others run.
  void at_each_operator(const std::function<void(size_t at)>& one) {
    size_t operators = 1;
    for (size_t at = 0; at < operators; ++at) {
      size_t count = 0;
      watch(
          [&, at](std::string_view op) {
            if (!op.empty() && count++ == at) run_inside();
            return true;
          },
          1);
      one(at);
      operators = count;
      world.lane->set_pulse({});
    }
    EXPECT_GE(operators, 3u);
  }
  // The same programs, in the same buckets, and others; each is checked.
  void run_inside() {
    world.lane->pause();
    watch({}, 2);
    ASSERT_EQ(run(call_of(5, 77)), "");
    expect_as_inside_before(0);
    run_more_inside();
    at::Tensor x = noise({kPausedElements}, 5);
    ASSERT_EQ(run(1, x, runs_inside++ % 2 == 0), "");
    ASSERT_TRUE(same_bytes(world.output(1), x.neg().relu().add(x)));
    ASSERT_EQ(run(2, x), "");
    world.lane->resume();
  }
  virtual void run_more_inside() {}
  // The result of the last run, which is the one of that number inside of each pause.
  void expect_as_inside_before(size_t number) {
    at::Tensor& before = inside[number];
    const at::Tensor result = world.output(0);
    if (before.defined()) {
      ASSERT_TRUE(same_bytes(result, before)) << number;
    }
    before = result;
  }

  const at::ScalarType type;
  const AttentionShape shape{.capacity = 64, .type = type};
  NoneHeld heap;
  World world{weights(), true};
  std::vector<std::unique_ptr<Program>> programs;
  std::map<size_t, at::Tensor> inside;  // what runs inside gave
  size_t runs_inside = 0;
};

TEST_F(Pauses, a_growing_layer_has_the_bytes_that_it_has_alone) {
  const Call alone = call_of(7, 1);
  ASSERT_EQ(run(alone), "");
  const at::Tensor expected = world.output(0);
  at_each_operator([&](size_t at) {
    const Call again = call_of(7, 1);
    ASSERT_EQ(run(again), "") << at;
    EXPECT_TRUE(same_bytes(world.output(0), expected)) << at;
    EXPECT_TRUE(same_bytes(again.keys, alone.keys)) << at;
    EXPECT_TRUE(same_bytes(again.values, alone.values)) << at;
  });
  EXPECT_EQ(world.lane->stats().plan_misses, 0u);
}

// The pause is in the rehearsal, too: each time the plan is new.
TEST_F(Pauses, a_rehearsal_and_a_recording_are_as_they_are_alone) {
  const Call alone = call_of(7, 1);
  ASSERT_EQ(run(alone), "");
  const at::Tensor expected = world.output(0);
  at_each_operator([&](size_t at) {
    world.lane->forget(attention());
    const Call again = call_of(7, 1);
    ASSERT_EQ(run(again), "") << at;
    EXPECT_TRUE(same_bytes(world.output(0), expected)) << at;
  });
  at::Tensor x = noise({kPausedElements}, 3);
  ASSERT_EQ(run(1, x), "");
  const at::Tensor recorded_alone = world.output(0);
  at_each_operator([&](size_t at) {
    world.lane->forget(*programs[1]);
    ASSERT_EQ(run(1, x), "") << at;
    EXPECT_TRUE(same_bytes(world.output(0), recorded_alone)) << at;
  });
}

TEST_F(Pauses, a_run_for_once_and_one_that_writes_in_place_are_as_they_are_alone) {
  const at::Tensor x = noise({kPausedElements}, 3);
  for (const bool once : {true, false}) {
    at::Tensor changed = x.clone();
    ASSERT_EQ(run(2, changed, once), "");
    const at::Tensor expected = world.output(0);
    at_each_operator([&](size_t at) {
      at::Tensor again = x.clone();
      ASSERT_EQ(run(2, again, once), "") << at;
      EXPECT_TRUE(same_bytes(world.output(0), expected)) << at;
      EXPECT_TRUE(same_bytes(again, changed)) << at;
    });
  }
}

TEST_F(Pauses, what_runs_inside_take_is_of_the_heap_and_goes_with_the_next_trim) {
  ASSERT_EQ(run(call_of(7, 1)), "");
  world.lane->trim();
  const uint64_t before = heap.kept;
  const size_t slab = world.slab.bytes.size();
  at_each_operator([&](size_t) { ASSERT_EQ(run(call_of(7, 1)), ""); });
  EXPECT_GE(heap.most, before + (1 << 20));
  EXPECT_EQ(world.slab.bytes.size(), slab) << "the lane's slab is the paused run's";
  world.lane->trim();
  EXPECT_EQ(heap.kept, before);
}

TEST_F(Pauses, nobodys_bytes_count_for_the_quota_of_another) {
  ASSERT_EQ(run(call_of(7, 1)), "");
  at::Tensor x = noise({kPausedElements}, 3);
  size_t count = 0;
  watch(
      [&](std::string_view op) {
        if (op.empty() || count++ != 0) return true;
        world.lane->pause();
        watch({}, 2);
        EXPECT_EQ(run(1, x), "");
        world.lane->resume();
        return true;
      },
      1);
  ASSERT_EQ(run(call_of(7, 1)), "");
  // The slab of those inside is kept, and larger than what this session may have.
  world.lane->set_owner({.id = 3, .bytes_max = 200 << 10});
  EXPECT_EQ(run(1, x), "");
  EXPECT_EQ(run(1, x, true), "");
}

TEST_F(Pauses, an_error_inside_and_a_run_that_is_given_up_are_each_ones_own) {
  at::Tensor x = noise({kPausedElements}, 3);
  const at::Tensor expected = x.neg().relu().add(x);
  size_t count = 0;
  watch(
      [&](std::string_view op) {
        if (op.empty() || count++ != 1) return true;
        world.lane->pause();
        watch([](std::string_view) { return false; }, 2);
        EXPECT_NE(run(1, x), "");
        const at::Tensor few = noise({3}, 1);
        EXPECT_NE(run(1, few), "") << "it is bound to too few bytes";
        world.lane->resume();
        return true;
      },
      1);
  ASSERT_EQ(run(1, x), "");
  EXPECT_TRUE(same_bytes(world.output(1), expected));
  EXPECT_EQ(world.lane->failed_at(), std::nullopt);
}

// Programs of fast numerics, among them a layer in which each pass has fired.
class FastPauses : public Pauses, public ::testing::WithParamInterface<at::ScalarType> {
 protected:
  static constexpr size_t kAttention = 3, kLayer = 4;

  FastPauses() : Pauses(GetParam()) {
    srg::Graph fast = attention_graph(shape);
    fast.numerics = srg::Numerics::kFast;
    admit(std::move(fast));
    admit(layer_graph(type, kRows, srg::Numerics::kFast));
    // A product for each projection, or one for several of a value, and attention.
    EXPECT_GE(programs[kAttention]->fast_nodes(), 3u);
    EXPECT_GE(programs[kLayer]->fast_nodes(), 7u);
    for (int64_t begin = 0; begin < 2; ++begin) {
      given.push_back(layer_inputs(type, begin, kRows));
      for (const at::Tensor& one : given.back()) {
        bindings[static_cast<size_t>(begin)].push_back(World::binding_of(one, false));
      }
      bindings[static_cast<size_t>(begin)].resize(programs[kLayer]->graph().storages.size());
    }
  }
  // Of rows from that one on.
  std::string run_layer(size_t begin) {
    return message_of(world.lane->run(*programs[kLayer], {{}, bindings[begin]}));
  }
  void run_more_inside() override {
    for (const int64_t tokens : {1, 9, 50}) {
      ASSERT_EQ(run(*programs[kAttention], call_of(tokens, 78)), "");
      expect_as_inside_before(static_cast<size_t>(tokens));
    }
    ASSERT_EQ(run_layer(1), "");
    expect_as_inside_before(100);
  }

  static constexpr int64_t kRows = 3;
  std::vector<std::vector<at::Tensor>> given;
  std::array<std::vector<StorageBinding>, 2> bindings;
};

// Of one token, of few, and of so many that other kernels compute them.
TEST_P(FastPauses, a_growing_layer_has_the_bytes_that_it_has_alone) {
  for (const bool is_new : {false, true}) {  // then the pause is in the rehearsal
    for (const int64_t tokens : {1, 7, 40}) {
      const Call alone = call_of(tokens, 1);
      ASSERT_EQ(run(*programs[kAttention], alone), "");
      const at::Tensor expected = world.output(0);
      at_each_operator([&](size_t at) {
        if (is_new) world.lane->forget(*programs[kAttention]);
        const Call again = call_of(tokens, 1);
        ASSERT_EQ(run(*programs[kAttention], again), "") << at;
        EXPECT_TRUE(same_bytes(world.output(0), expected)) << tokens << " tokens, at " << at;
        EXPECT_TRUE(same_bytes(again.keys, alone.keys)) << tokens << " tokens, at " << at;
        EXPECT_TRUE(same_bytes(again.values, alone.values)) << tokens << " tokens, at " << at;
      });
    }
  }
}

TEST_P(FastPauses, a_layer_of_all_kernels_has_the_bytes_that_it_has_alone) {
  ASSERT_EQ(run_layer(0), "");
  const at::Tensor expected = world.output(0);
  for (const bool is_new : {false, true}) {
    at_each_operator([&](size_t at) {
      if (is_new) world.lane->forget(*programs[kLayer]);
      ASSERT_EQ(run_layer(0), "") << at;
      EXPECT_TRUE(same_bytes(world.output(0), expected)) << at;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FastPauses, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& one) { return std::string(c10::toString(one.param)); });

}  // namespace
}  // namespace djinn::exec
