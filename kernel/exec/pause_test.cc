// SPDX-License-Identifier: Apache-2.0

// A run that is set aside between two operators, with others' runs inside: all have the bytes that
// they have alone, and what each takes is counted, and given back.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "kernel/exec/attention_for_tests.h"
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
  static constexpr AttentionShape kShape{.capacity = 64};

  Pauses() {
    LaneOptions options;
    options.threads = 2;
    options.grow_slab = world.slab.grow();
    options.heap = &heap;
    world.lane = *executor().make_lane(std::move(options));
    for (srg::Graph graph : {attention_graph(kShape), recorded(), updating()}) {
      EXPECT_EQ(message_of(world.admit(std::move(graph))), "");
      programs.push_back(std::move(world.program));
    }
  }
  Program& attention() { return *programs[0]; }

  static at::Tensor cache() { return at::zeros({1, kShape.kv_heads, kShape.capacity, kShape.dim}); }
  // A prefill or a token; the caches get its keys and values.
  struct Call {
    int64_t tokens = 0;
    uint64_t seed = 0;
    at::Tensor x = noise({1, tokens, kShape.hidden()}, seed);
    at::Tensor keys = cache();
    at::Tensor values = cache();
  };
  std::string run(const Call& call) {
    const std::vector<StorageBinding> bindings{World::binding_of(call.x, false),
                                               World::binding_of(call.keys, true),
                                               World::binding_of(call.values, true),
                                               {},
                                               {},
                                               {},
                                               {}};
    const std::vector<int64_t> symbols{call.tokens, 0};
    return message_of(world.lane->run(attention(), {symbols, bindings, {}, 0, call.tokens}));
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
    const Call call{5, 77};
    ASSERT_EQ(run(call), "");
    const at::Tensor result = world.output(0);
    if (inside.defined()) {
      ASSERT_TRUE(same_bytes(result, inside));
    }
    inside = result;
    at::Tensor x = noise({kPausedElements}, 5);
    ASSERT_EQ(run(1, x, runs_inside++ % 2 == 0), "");
    ASSERT_TRUE(same_bytes(world.output(1), x.neg().relu().add(x)));
    ASSERT_EQ(run(2, x), "");
    world.lane->resume();
  }

  NoneHeld heap;
  World world{attention_weights(kShape), true};
  std::vector<std::unique_ptr<Program>> programs;
  at::Tensor inside;  // what the run inside gave
  size_t runs_inside = 0;
};

TEST_F(Pauses, a_growing_layer_has_the_bytes_that_it_has_alone) {
  Call alone{7, 1};
  ASSERT_EQ(run(alone), "");
  const at::Tensor expected = world.output(0);
  at_each_operator([&](size_t at) {
    const Call again{7, 1};
    ASSERT_EQ(run(again), "") << at;
    EXPECT_TRUE(same_bytes(world.output(0), expected)) << at;
    EXPECT_TRUE(same_bytes(again.keys, alone.keys)) << at;
    EXPECT_TRUE(same_bytes(again.values, alone.values)) << at;
  });
  EXPECT_EQ(world.lane->stats().plan_misses, 0u);
}

// The pause is in the rehearsal, too: each time the plan is new.
TEST_F(Pauses, a_rehearsal_and_a_recording_are_as_they_are_alone) {
  Call alone{7, 1};
  ASSERT_EQ(run(alone), "");
  const at::Tensor expected = world.output(0);
  at_each_operator([&](size_t at) {
    world.lane->forget(attention());
    const Call again{7, 1};
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
  ASSERT_EQ(run(Call{7, 1}), "");
  world.lane->trim();
  const uint64_t before = heap.kept;
  const size_t slab = world.slab.bytes.size();
  at_each_operator([&](size_t) { ASSERT_EQ(run(Call{7, 1}), ""); });
  EXPECT_GE(heap.most, before + (1 << 20));
  EXPECT_EQ(world.slab.bytes.size(), slab) << "the lane's slab is the paused run's";
  world.lane->trim();
  EXPECT_EQ(heap.kept, before);
}

TEST_F(Pauses, nobodys_bytes_count_for_the_quota_of_another) {
  ASSERT_EQ(run(Call{7, 1}), "");
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
  ASSERT_EQ(run(Call{7, 1}), "");
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

}  // namespace
}  // namespace djinn::exec
