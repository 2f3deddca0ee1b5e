// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/beginning.h"

#include <gtest/gtest.h>

#include "kernel/srg/test_graphs.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

TEST(Beginning, each_of_a_random_graph_is_a_graph_whose_nodes_are_the_first) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = testing::RandomGraph(seed).make();
    for (size_t count = 0; count <= graph.nodes.size(); ++count) {
      const Beginning beginning = beginning_of(graph, count);
      const Status verified = verify(beginning.graph);
      ASSERT_TRUE(verified) << verified.error().message;
      ASSERT_EQ(beginning.graph.nodes.size(), count);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(beginning.graph.nodes[i].op, graph.nodes[i].op);
        EXPECT_EQ(beginning.graph.nodes[i].outputs.size(), graph.nodes[i].outputs.size());
      }
    }
  }
}

TEST(Beginning, keeps_the_storages_that_it_uses_and_the_outputs_that_it_makes) {
  GraphBuilder g("steps");
  const Tensor unused = g.input("late", DType::kFloat32, {4});
  const Tensor x = g.input("x", DType::kFloat32, {4});
  const Tensor y = g.op("aten::relu", {x});
  g.output("y", y);
  g.output("z", g.op("aten::add.Tensor", {unused, y}));
  const Graph graph = *std::move(g).finish();
  const Beginning one = beginning_of(graph, 1);
  ASSERT_EQ(one.graph.storages.size(), 1u);
  EXPECT_EQ(one.graph.storages[0].name, "x");
  EXPECT_EQ(one.storages[0], std::nullopt);
  EXPECT_EQ(one.storages[1], 0u);
  EXPECT_EQ(one.outputs, std::vector<size_t>{0});
  EXPECT_EQ(one.graph.values[one.graph.outputs[0]].name, "y");
  const Beginning all = beginning_of(graph, 2);
  EXPECT_EQ(all.graph, graph);
  EXPECT_EQ(all.outputs, (std::vector<size_t>{0, 1}));
}

}  // namespace
}  // namespace djinn::srg
