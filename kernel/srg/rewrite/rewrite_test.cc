// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/rewrite.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

Graph parsed(const std::string& body) {
  Result<Graph> graph = parse_text("srg 1 \"test\"\n" + body);
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  EXPECT_TRUE(verify(*graph).ok()) << verify(*graph).error().message;
  return *std::move(graph);
}

PassReport linear(const Rewriting& rewriting) {
  EXPECT_EQ(rewriting.passes.at(0).name, "linear");
  return rewriting.passes.at(0);
}

// What stands in place of `%y = ...` in a graph with the inputs and weights that follow.
std::string rewritten(const std::string& node) {
  const std::string before =
      "symbol tokens 1..512 tokens\n"
      "input %x : float32[tokens, 8]\n"
      "input %v : float32[8, 4]\n"
      "input %many : float32[3, 11, 8]\n"
      "weight %w \"w\" : float32[4, 8]\n"
      "weight %k \"k\" : float32[8, 4]\n"
      "weight %b \"b\" : float32[4]\n"
      "weight %gaps \"gaps\" : float32[4, 8] strides [32, 2]\n"
      "weight %int \"int\" : int64[4, 8]\n";
  const Rewriting rewriting = rewrite(parsed(before + node + "output %y\n"));
  const Node& last = rewriting.graph.nodes.back();
  if (linear(rewriting).fired == 0) {
    return linear(rewriting).reasons.empty() ? "" : linear(rewriting).reasons.begin()->first;
  }
  EXPECT_EQ(rewriting.fired(), 1u);
  const std::string text = print_text(rewriting.graph);
  const size_t begin = text.find(last.op);
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(rewrite_linear, products_with_a_weight_become_ours) {
  EXPECT_EQ(rewritten("%y = aten::linear(%x, %w, %b)\n"), "djinn::linear_rows(%x, %w, %b, false)");
  EXPECT_EQ(rewritten("%y = aten::linear(%x, %w)\n"), "djinn::linear_rows(%x, %w, none, false)");
  EXPECT_EQ(rewritten("%y = aten::addmm(%b, %x, %k)\n"), "djinn::linear_rows(%x, %k, %b, true)");
  EXPECT_EQ(rewritten("%y = aten::mm(%x, %k)\n"), "djinn::linear_rows(%x, %k, none, true)");
  EXPECT_EQ(rewritten("%y = aten::matmul(%x, %k)\n"), "djinn::linear_rows(%x, %k, none, true)");
}

TEST(rewrite_linear, a_weight_is_told_by_its_geometry_whatever_turned_it) {
  EXPECT_EQ(rewritten("%t = aten::t(%w)\n%y = aten::addmm(%b, %x, %t)\n"),
            "djinn::linear_rows(%x, %t, %b, true)");
  EXPECT_EQ(rewritten("%t = aten::as_strided(%w, [8, 4], [1, 8], 0)\n%y = aten::mm(%x, %t)\n"),
            "djinn::linear_rows(%x, %t, none, true)");
}

TEST(rewrite_linear, what_stays_has_a_reason) {
  EXPECT_EQ(rewritten("%y = aten::mm(%x, %v)\n"),
            "its weight is computed, or has other than two dimensions");
  EXPECT_EQ(rewritten("%y = aten::linear(%x, %gaps)\n"), "its weight has gaps");
  EXPECT_EQ(rewritten("%y = aten::linear(%x, %int)\n"), "its dtype has no kernel");
  EXPECT_EQ(rewritten("%y = aten::linear(%many, %w)\n"), "it has more than 32 rows");
  EXPECT_EQ(rewritten("%y = aten::addmm(%b, %x, %k, beta=2)\n"), "") << "another operation";
  EXPECT_EQ(rewritten("%y = aten::relu(%x)\n"), "") << "no product";
}

TEST(rewrite, what_is_bound_from_outside_stays_as_it_is) {
  const Graph graph = parsed(
      "symbol tokens 1..512 tokens\n"
      "input %x : bfloat16[1, tokens, 8]\n"
      "weight %w \"w\" : bfloat16[4, 8]\n"
      "%h = aten::linear(%x, %w) {role \"mlp\"}\n"
      "%y = aten::relu(%h)\n"
      "output %y\n");
  const Rewriting rewriting = rewrite(graph);
  EXPECT_EQ(linear(rewriting).fired, 1u);
  EXPECT_EQ(rewriting.graph.symbols, graph.symbols);
  EXPECT_EQ(rewriting.graph.storages, graph.storages);
  EXPECT_EQ(rewriting.graph.values, graph.values);
  EXPECT_EQ(rewriting.graph.outputs, graph.outputs);
  EXPECT_EQ(rewriting.graph.nodes[0].outputs, graph.nodes[0].outputs);
  EXPECT_EQ(rewriting.graph.nodes[0].annotation, graph.nodes[0].annotation);
  EXPECT_EQ(rewriting.graph.nodes[1], graph.nodes[1]);
  EXPECT_TRUE(verify(rewriting.graph).ok());
}

}  // namespace
}  // namespace djinn::srg
