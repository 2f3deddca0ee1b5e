// SPDX-License-Identifier: Apache-2.0

// Bytes that the scheduler says the nodes of captures read and write, against LibTorch's shapes and
// against the memory that plans are made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "kernel/exec/given_for_tests.h"
#include "kernel/exec/inference.h"
#include "kernel/exec/program.h"
#include "kernel/sched/cost.h"

namespace djinn::exec {
namespace {

struct Sums {
  uint64_t said = 0, planned = 0;  // what the scheduler says of nodes that make memory; all of it
};

// What is seen several times counts once.
uint64_t bytes_of(const ValueShape& shape) {
  uint64_t bytes = c10::elementSize(shape.type);
  for (size_t d = 0; d < shape.sizes.size(); ++d) {
    if (shape.strides[d] != 0) bytes *= static_cast<uint64_t>(shape.sizes[d]);
  }
  return bytes;
}

// Those that read all of their operands.
bool is_product(std::string_view op) {
  return op == "aten::linear" || op == "aten::addmm" || op == "aten::mm" || op == "aten::bmm" ||
         op == "aten::matmul" || op.starts_with("aten::scaled_dot_product_attention");
}

uint64_t bytes_of_operands(const srg::Node& node, const Sample& sample) {
  uint64_t bytes = 0;
  for (const auto& argument : node.arguments) {
    const auto* const value = std::get_if<srg::ValueRef>(&argument.value);
    if (value != nullptr) bytes += bytes_of(sample.shapes[value->id]);
  }
  return bytes;
}

// With one run of shape inference, at its own symbols.
Sums compare(const srg::Graph& graph, const std::vector<int64_t>& symbols, const Sample& sample) {
  const auto shapes = sched::shapes_at(graph, symbols);
  const sched::GraphCost cost = sched::cost_at(graph, symbols);
  EXPECT_EQ(cost.unknown, 0u);
  std::map<srg::ValueId, uint64_t> made;
  for (const SamplePiece& piece : sample.pieces) made[piece.value] = piece.bytes;
  Sums sums;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const srg::Node& node = graph.nodes[n];
    uint64_t bytes = 0;
    bool makes_memory = false;
    for (const srg::ValueId id : node.outputs) {
      EXPECT_TRUE(shapes[id] && sample.shapes[id].known) << node.op;
      if (!shapes[id] || !sample.shapes[id].known) continue;
      EXPECT_EQ(shapes[id]->dtype, from_torch(sample.shapes[id].type)) << node.op;
      EXPECT_TRUE(std::ranges::equal(shapes[id]->sizes, sample.shapes[id].sizes, {}, {},
                                     [](int64_t size) { return static_cast<uint64_t>(size); }))
          << node.op;
      EXPECT_EQ(sched::byte_count(*shapes[id]), bytes_of(sample.shapes[id])) << node.op;
      makes_memory |= made.contains(id);
      bytes += made.contains(id) ? made[id] : 0;
    }
    if (!cost.nodes[n]) continue;
    if (is_product(node.op)) {
      EXPECT_EQ(cost.nodes[n]->read, bytes_of_operands(node, sample)) << node.op;
    }
    if (!makes_memory) continue;
    EXPECT_EQ(cost.nodes[n]->written, bytes) << node.op;
    sums.said += cost.nodes[n]->written;
  }
  for (const SamplePiece& piece : sample.pieces) sums.planned += piece.bytes;
  return sums;
}

TEST(CostBytes, ci_of_captures_are_those_of_libtorchs_tensors_and_of_plans) {
  for (const srg::Capture& capture : srg::read_captures()) {
    SCOPED_TRACE(capture.name);
    World world(given_to(capture.graph, point_of(capture, 1).symbols).weights);
    ASSERT_EQ(message_of(world.admit(capture.graph)), "");
    AdmittedGraph admitted = dynamic_cast<const CpuProgram&>(*world.program).admitted();
    const Result<Inference> inference =
        infer_shapes(admitted, {.activation_bytes_max = UINT64_MAX});
    ASSERT_TRUE(inference.ok()) << inference.error().message;
    for (size_t point = 0; point < inference->points.size(); ++point) {
      const auto [said, planned] =
          compare(admitted.graph, inference->points[point], inference->samples[point]);
      EXPECT_GE(static_cast<double>(said), 0.95 * static_cast<double>(planned));
      EXPECT_LE(static_cast<double>(said), 1.05 * static_cast<double>(planned));
    }
  }
}

}  // namespace
}  // namespace djinn::exec
