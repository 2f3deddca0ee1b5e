// SPDX-License-Identifier: Apache-2.0

// Outputs that have places of their own.
#include <gtest/gtest.h>

#include <vector>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

constexpr int64_t kPlaceElements = 64 * 1024;
constexpr uint64_t kPlaceBytes = kPlaceElements * sizeof(float);

srg::ValueRef claimed(GraphBuilder& b, srg::ValueRef ref, std::vector<srg::Expr> sizes,
                      std::vector<srg::Expr> strides) {
  srg::Value& value = b.graph.values[ref.id];
  value.dtype = DType::kFloat32;
  value.claims_sizes = true;
  value.sizes = std::move(sizes);
  value.strides = std::move(strides);
  return ref;
}

srg::ValueRef claimed(GraphBuilder& b, srg::ValueRef ref) {
  return claimed(b, ref, {kPlaceElements}, {1});
}

// Memory for outputs, full of what is no number.
class Memory {
 public:
  explicit Memory(size_t outputs) : bytes_(at::full({int64_t(outputs), kPlaceElements}, NAN)) {
    for (size_t i = 0; i < outputs; ++i) places.push_back({data() + i * kPlaceBytes, kPlaceBytes});
  }
  std::vector<OutputPlace> places;

 private:
  std::byte* data() { return static_cast<std::byte*>(bytes_.mutable_data_ptr()); }
  at::Tensor bytes_;
};

// exp(x), whose output is written in place afterwards, behind an intermediate.
srg::Graph one_output() {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {kPlaceElements});
  const auto passing = claimed(b, b.call("aten::neg", {arg(x)}));
  const auto y = claimed(b, b.call("aten::exp", {arg(passing)}));
  b.call("aten::add_.Tensor", {arg(y), integer(1)});
  b.output(y);
  return b.graph;
}

TEST(Places, an_output_is_made_in_its_place_and_takes_none_of_the_slab) {
  World world({}, true), plain({}, false);
  ASSERT_EQ(message_of(world.admit(one_output())), "");
  ASSERT_EQ(message_of(plain.admit(one_output())), "");
  Memory memory(1);
  const at::Tensor x = noise({kPlaceElements}, 3);
  ASSERT_EQ(message_of(world.run_once_into(memory.places, {x})), "");
  ASSERT_EQ(message_of(plain.run({}, {x})), "");
  EXPECT_EQ(world.lane->outputs()[0].storage, memory.places[0].data);
  EXPECT_EQ(world.lane->outputs()[0].storage_bytes, kPlaceBytes);
  EXPECT_TRUE(same_bytes(world.output(0), plain.output(0)));
  EXPECT_LT(world.slab.bytes.size(), 2 * kPlaceBytes) << "the intermediate, and what gaps may take";
}

TEST(Places, a_run_that_makes_nothing_else_takes_nothing_of_the_heap) {
  struct Refusing final : HeapOwner {
    Outcome<void> allow(uint64_t) override { return Pending{}; }
    void settle(uint64_t) override {}
  } refusing;
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {kPlaceElements});
  const auto y = claimed(b, b.call("aten::neg", {arg(x)}));
  b.call("aten::mul_.Scalar", {arg(y), arg(0.5)});  // which its kernel makes a tensor of
  b.output(y);
  World world({}, true), plain({}, false);
  LaneOptions options;
  options.grow_slab = world.slab.grow();
  options.heap = &refusing;
  world.lane = *executor().make_lane(std::move(options));
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  ASSERT_EQ(message_of(plain.admit(b.graph)), "");
  Memory memory(1);
  const at::Tensor input = noise({kPlaceElements}, 3);
  ASSERT_EQ(message_of(world.run_once_into(memory.places, {input})), "");
  ASSERT_EQ(message_of(plain.run({}, {input})), "");
  EXPECT_TRUE(same_bytes(world.output(0), plain.output(0)));
}

TEST(Places, replayed_runs_use_them_and_fit_their_plan_with_and_without) {
  World world({}, true), plain({}, false);
  ASSERT_EQ(message_of(world.admit(one_output())), "");
  ASSERT_EQ(message_of(plain.admit(one_output())), "");
  const auto run = [&](std::span<const OutputPlace> places, uint64_t seed) {
    const at::Tensor x = noise({kPlaceElements}, seed);
    world.slab.poison();
    ASSERT_EQ(message_of(world.run_into(places, {x})), "");
    ASSERT_EQ(message_of(plain.run({}, {x})), "");
    EXPECT_TRUE(same_bytes(world.output(0), plain.output(0))) << seed;
    const bool there = !places.empty() && world.lane->outputs()[0].storage == places[0].data;
    EXPECT_EQ(there, !places.empty()) << seed;
  };
  for (uint64_t seed = 1; seed <= 3; ++seed) run(Memory(1).places, seed);
  EXPECT_EQ(world.lane->stats().planned_runs, 2u);
  EXPECT_EQ(world.lane->stats().plan_misses, 0u);
  run({}, 4);  // the plan has no room for it
  run({}, 5);
  EXPECT_EQ(world.lane->stats().plan_misses, 1u);
  for (uint64_t seed = 6; seed <= 7; ++seed) {
    run({}, seed);
    run(Memory(1).places, seed);
  }
  EXPECT_EQ(world.lane->stats().plan_misses, 1u);
}

TEST(Places, what_a_kernel_lays_out_otherwise_is_where_its_view_says) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {64, 32});
  const auto y = b.call("aten::neg", {arg(x)});
  b.output(claimed(b, y, {64, 32}, {64, 1}));  // with gaps
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  Memory memory(1);
  const at::Tensor input = noise({64, 32}, 3);
  ASSERT_EQ(message_of(world.run_once_into(memory.places, {input})), "");
  EXPECT_NE(world.lane->outputs()[0].storage, memory.places[0].data);
  EXPECT_TRUE(same_bytes(world.output(0), -input));
}

// Of results of one size nothing tells which is allocated first.
TEST(Places, results_of_one_operator_never_share_one) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {kPlaceElements, 4});
  auto results =
      b.call_many("aten::native_layer_norm",
                  {arg(x), integers({4}), arg(srg::None{}), arg(srg::None{}), arg(1e-5)}, 3);
  claimed(b, results[0], {kPlaceElements, 4}, {4, 1});
  for (const size_t i : {1, 2}) {
    b.output(claimed(b, results[i], {kPlaceElements, 1}, {1, 1}));
  }
  World world({}, true), plain({}, false);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  ASSERT_EQ(message_of(plain.admit(b.graph)), "");
  Memory memory(2);
  const at::Tensor input = noise({kPlaceElements, 4}, 3);
  ASSERT_EQ(message_of(world.run_once_into(memory.places, {input})), "");
  ASSERT_EQ(message_of(plain.run({}, {input})), "");
  EXPECT_NE(world.lane->outputs()[0].storage, world.lane->outputs()[1].storage);
  for (const size_t i : {0, 1}) EXPECT_TRUE(same_bytes(world.output(i), plain.output(i))) << i;
}

}  // namespace
}  // namespace djinn::exec
