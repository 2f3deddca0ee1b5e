// SPDX-License-Identifier: Apache-2.0

// Admission of graphs without symbols, where claims stand in for meta runs.
#include "kernel/exec/claims.h"

#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

void claim(GraphBuilder& b, srg::ValueRef ref, std::vector<srg::Expr> sizes,
           std::vector<srg::Expr> strides) {
  srg::Value& value = b.graph.values[ref.id];
  value.dtype = DType::kFloat32;
  value.claims_sizes = true;
  value.sizes = std::move(sizes);
  value.strides = std::move(strides);
}

TEST(Claims, shapes_come_from_claims_and_bytes_from_layouts) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4, 4});
  auto y = b.call("aten::relu", {arg(x)});
  claim(b, y, {4, 4}, {4, 1});
  y = b.call("aten::neg", {arg(y)});
  claim(b, y, {4, 4}, {8, 1});  // 28 elements with the gaps
  b.output(y);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  EXPECT_EQ(world.program->outputs()[0].sizes, (std::vector<srg::Expr>{4, 4}));
  EXPECT_EQ(world.program->activation_bytes_estimate(), 2 * kTensorAlignment);
  EXPECT_EQ(code_of(world.admit(b.graph, 1000)), ErrorCode::kQuotaExceeded);
}

TEST(Claims, a_wrong_claim_is_an_error_of_the_run_that_names_the_node) {
  GraphBuilder b;
  const auto y = b.call("aten::relu", {arg(b.input("x", DType::kFloat32, {4}))});
  claim(b, y, {5}, {1});
  b.output(y);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const Outcome<void> status = world.run({}, {noise({4}, 1)});
  EXPECT_EQ(code_of(status), ErrorCode::kShapeMismatch);
  EXPECT_EQ(message_of(status).substr(0, 10), "aten::relu");
}

TEST(Claims, writes_through_views_are_announced) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4, 4});
  const auto part =
      b.call("aten::as_strided", {arg(x), integers({2, 4}), integers({4, 1}), integer(4)});
  const auto written = b.call("aten::zero_", {arg(part)});
  b.call("aten::add_.Tensor", {arg(written), integer(1)});
  const auto y = b.call("aten::relu", {arg(x)});
  claim(b, y, {4, 4}, {4, 1});
  const auto row = b.call("aten::as_strided", {arg(y), integers({4}), integers({1}), integer(8)});
  b.call("aten::zero_", {arg(row)});
  b.output(y);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const auto ranges = world.program->written_ranges({});
  ASSERT_EQ(ranges->size(), 1u) << "written twice, and one range";
  EXPECT_EQ((*ranges)[0].offset, 16u);
  EXPECT_EQ((*ranges)[0].bytes, 32u);
  const at::Tensor input = at::full({4, 4}, 3.0);
  EXPECT_EQ(code_of(world.run({}, {input}, false)), ErrorCode::kPermissionDenied);
  ASSERT_EQ(message_of(world.run({}, {input}, true)), "");
  const at::Tensor expected = at::full({4, 4}, 3.0);
  expected.narrow(0, 1, 2).fill_(1);
  EXPECT_TRUE(same_bytes(input, expected));
  expected[2].zero_();
  EXPECT_TRUE(same_bytes(world.output(0), expected));
}

TEST(Claims, written_ranges_are_joined_where_they_overlap_or_touch) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {16}), z = b.input("z", DType::kFloat32, {16});
  const auto write = [&](srg::ValueRef whole, int64_t from, int64_t count) {
    b.call("aten::zero_", {arg(b.call("aten::as_strided", {arg(whole), integers({count}),
                                                           integers({1}), integer(from)}))});
  };
  for (const int64_t from : {8, 0, 2}) write(x, from, 3);  // [0, 5) and [8, 11)
  write(z, 4, 4);
  write(x, 11, 1);
  b.output(b.call("aten::relu", {arg(x)}));
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const auto ranges = world.program->written_ranges({});
  ASSERT_EQ(ranges->size(), 3u);
  const std::vector<WrittenRange> expected{{0, 0, 20}, {0, 32, 16}, {1, 16, 16}};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*ranges)[i].storage, expected[i].storage);
    EXPECT_EQ((*ranges)[i].offset, expected[i].offset);
    EXPECT_EQ((*ranges)[i].bytes, expected[i].bytes);
  }
}

TEST(Claims, a_weight_is_not_written_through_a_view_either) {
  World world({{"w", noise({8}, 1)}});
  GraphBuilder b;
  const auto w = b.weight("w", DType::kFloat32, {8});
  const auto part = b.call("aten::as_strided", {arg(w), integers({2}), integers({1}), integer(4)});
  b.output(b.call("aten::zero_", {arg(part)}));
  EXPECT_EQ(code_of(world.admit(b.graph)), ErrorCode::kPermissionDenied);
}

TEST(Claims, a_view_beyond_a_claimed_storage_is_refused_by_the_run) {
  GraphBuilder b;
  const auto y = b.call("aten::relu", {arg(b.input("x", DType::kFloat32, {4}))});
  claim(b, y, {4}, {1});
  b.output(b.call("aten::as_strided", {arg(y), integers({5}), integers({1}), integer(0)}));
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  EXPECT_NE(code_of(world.run({}, {noise({4}, 1)})), ErrorCode::kOk);
}

TEST(Claims, nodes_that_claim_less_are_asked_on_meta) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4, 3});
  const auto y = b.call("aten::relu", {arg(x)});
  claim(b, y, {4, 3}, {3, 1});
  const auto t = b.call("aten::transpose.int", {arg(y), integer(0), integer(1)});
  const auto flat = b.call("aten::reshape", {arg(t), integers({12})});
  b.call("aten::zero_", {arg(b.call("aten::view", {arg(y), integers({12})}))});
  b.output(flat);
  b.output(b.call("aten::nonzero", {arg(flat)}));
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  EXPECT_EQ(world.program->outputs()[0].sizes, (std::vector<srg::Expr>{12}));
  EXPECT_FALSE(world.program->outputs()[1].sizes_known);
  const at::Tensor input = at::full({4, 3}, 1.0);
  ASSERT_EQ(message_of(world.run({}, {input})), "");
  EXPECT_TRUE(
      same_bytes(world.output(0), at::full({12}, 1.0f)));  // reshape copied before the write
}

// What output_mask leaves out has no claim, and nobody may use it.
TEST(Claims, results_that_a_mask_leaves_out_stay_out) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {5, 3});
  const auto g = b.input("g", DType::kFloat32, {5, 2});
  const auto w = b.input("w", DType::kFloat32, {2, 3});
  const auto made =
      b.call_many("aten::linear_backward",
                  {arg(x), arg(g), arg(w), arg(srg::BoolList{{false, true, true}})}, 3);
  claim(b, made[1], {2, 3}, {3, 1});
  claim(b, made[2], {2}, {1});
  b.output(made[1]);
  b.output(made[2]);
  World world({});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const at::Tensor input = noise({5, 3}, 1), gradient = noise({5, 2}, 2), weight = noise({2, 3}, 3);
  ASSERT_EQ(message_of(world.run({}, {input, gradient, weight})), "");
  EXPECT_TRUE(same_bytes(world.output(0), gradient.t().mm(input)));
  EXPECT_TRUE(same_bytes(world.output(1), gradient.sum(0)));

  GraphBuilder used = b;
  used.output(used.call("aten::relu", {arg(made[0])}));
  EXPECT_NE(code_of(world.admit(used.graph)), ErrorCode::kOk);
  claim(b, made[0], {5, 3}, {3, 1});
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  EXPECT_EQ(code_of(world.run({}, {input, gradient, weight})), ErrorCode::kShapeMismatch);
}

}  // namespace
}  // namespace djinn::exec
