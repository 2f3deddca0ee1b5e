// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/weights.h"

#include <gtest/gtest.h>

#include "kernel/srg/builder.h"

namespace djinn::client {
namespace {

srg::ModelManifest manifest_with(std::vector<uint64_t> sizes) {
  srg::ModelManifest manifest;
  manifest.tensors.push_back({"w", DType::kFloat32, std::move(sizes)});
  return manifest;
}

// One that has a weight w [64, 32].
srg::Graph graph() {
  srg::GraphBuilder g("test");
  const auto x = g.input("x", DType::kFloat32, {1, 32});
  const auto w = g.weight("w", DType::kFloat32, {64, 32});
  g.output("y", g.op("aten::linear", {x, w, srg::none}));
  auto made = std::move(g).finish();
  EXPECT_TRUE(made);
  return made ? *std::move(made) : srg::Graph();
}

TEST(CheckWeights, tensors_of_the_sizes_that_a_graph_asks_for_are_taken) {
  EXPECT_TRUE(check_weights(graph(), manifest_with({64, 32})));
}

TEST(CheckWeights, another_size_is_refused_with_both_of_them) {
  for (const std::vector<uint64_t>& sizes :
       {std::vector<uint64_t>{32, 64}, {64}, {64, 32, 1}, {}, {64, 0}}) {
    const Status checked = check_weights(graph(), manifest_with(sizes));
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kShapeMismatch);
    EXPECT_NE(checked.error().message.find("'w'"), std::string::npos);
    EXPECT_NE(checked.error().message.find("[64, 32]"), std::string::npos);
  }
}

TEST(CheckWeights, a_tensor_that_is_not_there_is_named) {
  const Status checked = check_weights(graph(), {});
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::kNotFound);
  EXPECT_NE(checked.error().message.find("'w'"), std::string::npos);
}

TEST(CheckLayers, there_are_no_more_layers_than_tensors) {
  EXPECT_TRUE(check_layers(0, "h.", manifest_with({1})));
  EXPECT_TRUE(check_layers(1, "h.", manifest_with({1})));
  EXPECT_EQ(check_layers(1'000'000'000, "h.", manifest_with({1})).error().code,
            ErrorCode::kShapeMismatch);
}

TEST(CheckLayers, there_is_no_tensor_of_a_layer_beyond_them) {
  srg::ModelManifest manifest;
  for (const char* const name : {"h.0.w", "h.1.w", "h.x.w", "h.7", "lm.9.w"}) {
    manifest.tensors.push_back({name, DType::kFloat32, {1}});
  }
  EXPECT_TRUE(check_layers(2, "h.", manifest));
  const Status refused = check_layers(1, "h.", manifest);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kShapeMismatch);
  EXPECT_NE(refused.error().message.find("'h.1.w'"), std::string::npos);
  manifest.tensors.push_back({"h.99999999999999999999.w", DType::kFloat32, {1}});
  EXPECT_FALSE(check_layers(2, "h.", manifest));
}

}  // namespace
}  // namespace djinn::client
