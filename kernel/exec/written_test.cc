// SPDX-License-Identifier: Apache-2.0

// What a graph may write, told without calling anything.
#include <gtest/gtest.h>

#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/graph_builder_for_tests.h"

namespace djinn::exec {
namespace {

using Inputs = std::vector<srg::StorageIndex>;

TEST(InputsWritten, are_found_through_views_and_in_place_results) {
  GraphBuilder b;
  const auto read = b.input("read", DType::kFloat32, {4, 4});
  const auto viewed = b.input("viewed", DType::kFloat32, {4, 4});
  const auto chained = b.input("chained", DType::kFloat32, {4});
  const auto part =
      b.call("aten::as_strided", {arg(viewed), integers({4}), integers({1}), integer(4)});
  b.call("aten::add_.Tensor", {arg(part), arg(read)});
  const auto same = b.call("aten::relu_", {arg(chained)});
  b.call("aten::mul_.Tensor", {arg(same), arg(read)});
  EXPECT_EQ(CpuExecutor().inputs_written(b.graph), (Inputs{1, 2}));
}

TEST(InputsWritten, are_not_what_the_graph_made_itself) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {4});
  const auto copy = b.call("aten::clone", {arg(x)});
  b.call("aten::zero_", {arg(copy)});
  const auto weight = b.weight("w", DType::kFloat32, {4});
  b.call("aten::zero_", {arg(weight)});  // refused elsewhere
  EXPECT_TRUE(CpuExecutor().inputs_written(b.graph).empty());
}

}  // namespace
}  // namespace djinn::exec
