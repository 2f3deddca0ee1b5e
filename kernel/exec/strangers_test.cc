// SPDX-License-Identifier: Apache-2.0

// Sessions of one user share a lane: what one's runs leave in its memory is given to no other's,
// and none takes more than its owner may.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

constexpr int64_t kStrangersElements = 4096;

// relu(neg(x)) + x: three allocations, two of them alive together.
srg::Graph three_steps(int64_t elements = kStrangersElements) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {elements});
  const auto negated = b.call("aten::neg", {arg(x)});
  const auto cut = b.call("aten::relu", {arg(negated)});
  b.output(b.call("aten::add.Tensor", {arg(cut), arg(x)}));
  return std::move(b.graph);
}

// An allocation of as much as a node's claim says.
srg::Graph claimed_whole(int64_t elements) {
  GraphBuilder b;
  const auto x = b.on_storage(b.storage(srg::StorageKind::kInput, "x"), DType::kFloat32, {elements},
                              {srg::Expr(0)});
  const auto y = b.call("aten::softmax.int", {arg(x), integer(0)});
  srg::Value& claim = b.graph.values[y.id];
  claim.dtype = DType::kFloat32;
  claim.claims_sizes = true;
  claim.sizes = {srg::Expr(elements)};
  claim.strides = {srg::Expr(1)};
  b.output(y);
  return std::move(b.graph);
}

size_t bytes_that_are(std::byte what, std::span<const std::byte> bytes) {
  return static_cast<size_t>(std::count(bytes.begin(), bytes.end(), what));
}

class Strangers : public ::testing::Test {
 protected:
  // Whether all that the run reaches was written or cleaned when its first operator is done. The
  // program has run before, so that it has a plan.
  bool finds_it_clean(Program& program, const at::Tensor& input) {
    const size_t left = poison_at_first_operator(program, input);
    return left <= world.slab.bytes.size() - world.lane->stats().planned_bytes;
  }
  // Bytes of the slab of which that is not so.
  size_t poison_at_first_operator(Program& program, const at::Tensor& input) {
    std::optional<size_t> left;
    int begun = 0;
    world.lane->set_pulse([&](std::string_view) {
      if (++begun == 2) left = bytes_that_are(std::byte{0xff}, world.slab.bytes);
      return true;
    });
    EXPECT_TRUE(run(program, input).ok());
    world.lane->set_pulse({});
    return left.value_or(SIZE_MAX);
  }

  Outcome<void> run(Program& program, const at::Tensor& input) {
    const StorageBinding binding = World::binding_of(input, false);
    return world.lane->run(program, {{}, std::span(&binding, 1)});
  }

  World world{{}, true};
};

// What is left at most: the test's slab is larger than the lane's, for its alignment.
constexpr size_t kAround = 64;

TEST_F(Strangers, find_zeros_where_others_have_computed) {
  const at::Tensor input = at::full({kStrangersElements}, 0.0);
  ASSERT_TRUE(world.admit(three_steps()).ok());
  world.lane->set_owner({.id = 1});
  ASSERT_TRUE(run(*world.program, input).ok());
  world.slab.poison();  // as if all of it had been computed
  EXPECT_FALSE(finds_it_clean(*world.program, input)) << "it goes on, uncleaned";
  for (const uint64_t owner : {2, 1}) {
    world.slab.poison();
    world.lane->set_owner({.id = owner});
    EXPECT_TRUE(finds_it_clean(*world.program, input));
    world.slab.poison();
    EXPECT_FALSE(finds_it_clean(*world.program, input)) << "cleaned twice";
  }
}

TEST_F(Strangers, clean_what_a_larger_run_reaches_later) {
  const at::Tensor few = at::full({kStrangersElements}, 0.0);
  const at::Tensor many = at::full({2 * kStrangersElements}, 0.0);
  ASSERT_TRUE(world.admit(three_steps()).ok());
  const std::unique_ptr<Program> small = std::move(world.program);
  ASSERT_TRUE(world.admit(three_steps(2 * kStrangersElements)).ok());
  world.lane->set_owner({.id = 1});
  ASSERT_TRUE(run(*small, few).ok());
  ASSERT_TRUE(run(*world.program, many).ok());
  world.slab.poison();
  world.lane->set_owner({.id = 2});
  EXPECT_GT(poison_at_first_operator(*small, few), kAround) << "the small run paid for all";
  EXPECT_TRUE(finds_it_clean(*world.program, many));
}

TEST_F(Strangers, are_given_zeros_by_the_heap) {
  constexpr size_t kBytes = 1000;
  NoBound owner;
  Heap heap(owner);
  for (int round = 0; round < 8; ++round) {
    Arena without_slab({}, heap);
    Recorder recorder(without_slab);
    const ScopedSink scope(recorder);
    at::Tensor tensor = at::empty({kBytes}, at::kByte);
    const std::span bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), kBytes);
    ASSERT_EQ(bytes_that_are(std::byte{0}, bytes), kBytes) << round;
    std::ranges::fill(bytes, std::byte{0xa5});  // malloc gives the block out again
  }
}

TEST_F(Strangers, are_refused_before_anything_is_allocated) {
  constexpr uint64_t kQuota = uint64_t{4} << 30;
  world.lane->set_owner({.id = 1, .bytes_max = kQuota});
  ASSERT_TRUE(world.admit(claimed_whole(int64_t{1} << 32)).ok());
  Outcome<void> status = world.run({}, {at::full({1}, 1.0)});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kQuotaExceeded) << status.error().message;

  GraphBuilder b;
  b.output(b.call("aten::arange", {integer(int64_t{1} << 31)}));
  ASSERT_TRUE(world.admit(b.graph).ok());
  status = world.run({}, {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kQuotaExceeded) << status.error().message;
  EXPECT_TRUE(world.slab.bytes.empty());
}

// With symbols the estimate is of the largest run: each is held to what it takes.
TEST_F(Strangers, with_symbols_are_refused_the_allocation_that_is_too_much) {
  GraphBuilder b;
  const srg::Expr n = b.symbol("n", 1, int64_t{1} << 40);
  const auto x =
      b.on_storage(b.storage(srg::StorageKind::kInput, "x"), DType::kFloat32, {n}, {srg::Expr(0)});
  b.output(b.call("aten::neg", {arg(x)}));
  ASSERT_TRUE(world.admit(b.graph).ok());
  world.lane->set_owner({.id = 1, .bytes_max = 1 << 20});
  EXPECT_TRUE(world.run({1000}, {at::full({1}, 1.0)}).ok());
  const Outcome<void> status = world.run({1 << 20}, {at::full({1}, 1.0)});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kQuotaExceeded) << status.error().message;
  EXPECT_TRUE(world.run({1000}, {at::full({1}, 1.0)}).ok());
}

// --- lists

TEST_F(Strangers, get_as_many_tensors_as_the_graph_names) {
  const auto split = [&](const char* op, std::vector<srg::Argument> more, size_t results,
                         int64_t elements = 8) {
    GraphBuilder b;
    std::vector<srg::Argument> arguments{arg(b.input("x", DType::kFloat32, {elements}))};
    arguments.insert(arguments.end(), more.begin(), more.end());
    for (const auto ref : b.call_many(op, arguments, results)) b.output(ref);
    Outcome<void> ended = world.admit(b.graph);
    if (ended) ended = world.run({}, {at::zeros({elements})});
    return code_of(ended);
  };
  EXPECT_EQ(split("aten::tensor_split.sections", {integer(3)}, 3), ErrorCode::kOk);
  // 8 million tensors took 1.8 GB; these would take more than there can be.
  EXPECT_EQ(split("aten::tensor_split.sections", {integer(int64_t{1} << 40)}, 3),
            ErrorCode::kShapeMismatch);
  EXPECT_EQ(split("aten::chunk", {integer(3)}, 3), ErrorCode::kOk);
  EXPECT_EQ(split("aten::chunk", {integer(5)}, 4), ErrorCode::kOk);  // of two each
  EXPECT_EQ(split("aten::chunk", {integer(int64_t{1} << 40)}, 3, 0), ErrorCode::kShapeMismatch);
  EXPECT_EQ(split("aten::split.Tensor", {integer(3)}, 3), ErrorCode::kOk);
  EXPECT_EQ(split("aten::split.Tensor", {integer(3)}, 1, 0), ErrorCode::kOk);
  EXPECT_EQ(split("aten::split.Tensor", {integer(3)}, 4), ErrorCode::kShapeMismatch);
  EXPECT_EQ(split("aten::unbind.int", {integer(0)}, 8), ErrorCode::kOk);
  EXPECT_EQ(split("aten::unbind.int", {integer(0)}, 7), ErrorCode::kShapeMismatch);
  EXPECT_EQ(split("aten::split_with_sizes", {integers({5, 3})}, 2), ErrorCode::kOk);
  EXPECT_EQ(split("aten::tensor_split.indices", {integers({5, 3})}, 3), ErrorCode::kOk);
}

}  // namespace
}  // namespace djinn::exec
