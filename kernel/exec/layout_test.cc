// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/layout.h"

#include <ATen/ops/add.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

using ::testing::HasSubstr;

void claim(srg::Graph& graph, srg::ValueRef ref, std::vector<srg::Expr> sizes,
           std::vector<srg::Expr> strides, DType dtype = DType::kFloat32) {
  srg::Value& value = graph.values[ref.id];
  value.dtype = dtype;
  value.claims_sizes = true;
  value.sizes = std::move(sizes);
  value.strides = std::move(strides);
}

// relu of x [4, 3] as claimed.
srg::Graph relu_with(std::vector<srg::Expr> strides) {
  GraphBuilder b;
  const auto y = b.call("aten::relu", {arg(b.input("x", DType::kFloat32, {4, 3}))});
  claim(b.graph, y, {4, 3}, std::move(strides));
  b.output(y);
  return std::move(b.graph);
}

TEST(Layout, a_result_has_the_strides_that_its_claim_names) {
  const at::Tensor x = noise({4, 3}, 1);
  for (const auto& [strides, bytes] :
       {std::pair<std::vector<int64_t>, uint64_t>{{3, 1}, 48}, {{1, 4}, 48}, {{8, 2}, 29 * 4}}) {
    World world({});
    ASSERT_EQ(message_of(world.admit(relu_with({strides[0], strides[1]}))), "");
    ASSERT_EQ(message_of(world.run({}, {x})), "");
    const OutputView& view = world.lane->outputs()[0];
    EXPECT_EQ(view.strides, strides);
    EXPECT_EQ(view.storage_offset, 0u);
    EXPECT_EQ(view.storage_bytes, bytes);
    EXPECT_TRUE(same_bytes(world.output(0), at::relu(x)));
  }
}

TEST(Layout, gaps_between_claimed_elements_are_zero) {
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(relu_with({8, 2}))), "");
  const at::Tensor ones = at::full({4, 3}, 1.0f);
  for (int run = 0; run < 3; ++run) {
    world.slab.poison();
    ASSERT_EQ(message_of(world.run({}, {ones})), "");
    const auto* words = reinterpret_cast<const float*>(world.lane->outputs()[0].storage.on_host());
    for (int i = 0; i < 29; ++i) EXPECT_EQ(words[i], i % 8 < 6 && i % 2 == 0 ? 1.0f : 0.0f) << i;
  }
  EXPECT_EQ(world.lane->stats().plan_misses, 0u);
}

// unsafe_split gives views of one storage and says nothing of it.
TEST(Layout, results_that_share_a_storage_unsaid_are_parted) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4, 2});
  const auto parts = b.call_many("aten::unsafe_split.Tensor", {arg(x), integer(2)}, 2);
  for (const auto part : parts) claim(b.graph, part, {2, 2}, {2, 1});
  b.call("aten::zero_", {arg(parts[0])});
  for (const auto part : parts) b.output(part);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const at::Tensor input = noise({4, 2}, 1);
  const at::Tensor before = input.clone();
  ASSERT_EQ(message_of(world.run({}, {input}, false)), "");
  EXPECT_TRUE(same_bytes(input, before));
  EXPECT_TRUE(same_bytes(world.output(0), at::zeros({2, 2})));
  EXPECT_TRUE(same_bytes(world.output(1), before.narrow(0, 2, 2)));
  for (const OutputView& view : world.lane->outputs()) {
    EXPECT_EQ(view.aliases, srg::kLocalStorage);
    EXPECT_EQ(view.storage_bytes, 16u);
  }
}

TEST(Layout, later_nodes_see_the_claimed_layout) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4, 3});
  const auto y = b.call("aten::relu", {arg(x)});
  claim(b.graph, y, {4, 3}, {1, 4});
  b.output(b.call("aten::as_strided", {arg(y), integers({12}), integers({1}), integer(0)}));
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const at::Tensor input = noise({4, 3}, 1);
  ASSERT_EQ(message_of(world.run({}, {input})), "");
  EXPECT_TRUE(same_bytes(world.output(0), at::relu(input).t().reshape({12})));
}

TEST(Layout, claims_with_symbols_are_evaluated_at_each_run) {
  GraphBuilder b;
  const srg::Expr n = b.symbol("n", 1, 16);
  const auto y = b.call("aten::relu", {arg(b.input("x", DType::kFloat32, {n, 3}))});
  claim(b.graph, y, {n, 3}, {1, n});
  b.output(y);
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  for (const int64_t rows : {16, 1, 5, 16}) {
    const at::Tensor x = noise({rows, 3}, 1);
    ASSERT_EQ(message_of(world.run({rows}, {x})), "");
    EXPECT_EQ(world.lane->outputs()[0].strides, (std::vector<int64_t>{1, rows}));
    EXPECT_TRUE(same_bytes(world.output(0), at::relu(x)));
  }
  EXPECT_EQ(world.lane->stats().plan_misses, 0u);
}

TEST(Layout, views_and_in_place_results_may_claim_only_what_they_are) {
  World world({});
  const auto code = [&](const char* op, std::vector<srg::Argument> more,
                        std::vector<srg::Expr> strides) {
    GraphBuilder b;
    more.insert(more.begin(), arg(b.input("x", DType::kFloat32, {4, 4})));
    const auto y = b.call(op, std::move(more));
    claim(b.graph, y, {4, 4}, std::move(strides));
    b.output(y);
    return code_of(world.admit(b.graph));
  };
  EXPECT_EQ(code("aten::t", {}, {1, 4}), ErrorCode::kOk);
  EXPECT_EQ(code("aten::t", {}, {4, 1}), ErrorCode::kShapeMismatch);
  EXPECT_EQ(code("aten::zero_", {}, {4, 1}), ErrorCode::kOk);
  EXPECT_EQ(code("aten::zero_", {}, {1, 4}), ErrorCode::kShapeMismatch);
}

TEST(Layout, other_sizes_or_another_dtype_are_no_matter_of_layout) {
  World world({});
  const at::Tensor x = noise({4, 3}, 1);
  const auto code = [&](std::vector<srg::Expr> sizes, DType dtype) {
    srg::Graph graph = relu_with({3, 1});
    claim(graph, {1}, std::move(sizes), {3, 1}, dtype);
    const Status admitted = world.admit(graph);
    return code_of(admitted ? world.run({}, {x}) : admitted);
  };
  EXPECT_EQ(code({4, 3}, DType::kFloat32), ErrorCode::kOk);
  EXPECT_EQ(code({3, 4}, DType::kFloat32), ErrorCode::kShapeMismatch);
  EXPECT_EQ(code({4, 3}, DType::kFloat64), ErrorCode::kShapeMismatch);
}

TEST(Layout, elements_that_share_memory_cannot_be_copied_into) {
  for (const auto& [down, across] : {std::pair{0, 1}, {2, 1}, {1, 3}, {0, 0}}) {
    World world({});
    ASSERT_EQ(message_of(world.admit(relu_with({down, across}))), "");
    const Outcome<void> status = world.run({}, {noise({4, 3}, 1)});
    EXPECT_EQ(code_of(status), ErrorCode::kInvalidArgument);
    EXPECT_THAT(message_of(status), HasSubstr("aten::relu"));
    EXPECT_THAT(message_of(status), HasSubstr("elements share memory"));
  }
}

}  // namespace
}  // namespace djinn::exec
