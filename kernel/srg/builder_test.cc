// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/builder.h"

#include <gtest/gtest.h>

#include "kernel/srg/test_graphs.h"
#include "kernel/srg/text.h"

namespace djinn::srg {
namespace {

TEST(Builder, writes_the_graph_that_its_text_says) {
  GraphBuilder g("mlp");
  const Expr tokens = g.symbol("tokens", 1, 512, SymbolRole::kTokens);
  const Tensor x = g.input("x", DType::kFloat32, {tokens, 384});
  Tensor y;
  {
    const auto outer = g.module("encoder");
    const auto inner = g.module("mlp");
    const auto role = g.role("mlp");
    const Tensor w = g.weight("w", DType::kFloat32, {8, 384});
    y = g.op("aten::gelu", {g.op("aten::linear", {x, w, none})}, {{"approximate", "tanh"}});
  }
  const auto halves = g.op_n(2, "aten::split.Tensor", {y, 4, -1});
  g.op_n(0, "djinn::kv_append", {x, halves[0], tokens - 1});
  g.claim(halves[1], DType::kFloat32, {tokens, 4});
  g.criticality(halves[1], 7);
  g.output("y", halves[1]);
  const auto graph = std::move(g).finish();
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  EXPECT_EQ(print_text(*graph),
            "srg 1 \"mlp\"\n"
            "symbol tokens 1..512 tokens\n"
            "input %x : float32[tokens, 384]\n"
            "weight %w : float32[8, 384]\n"
            "%2 = aten::linear(%x, %w, none) {module \"encoder.mlp\", role \"mlp\"}\n"
            "%3 = aten::gelu(%2, approximate=\"tanh\") {module \"encoder.mlp\", role \"mlp\"}\n"
            "%4, %y : float32[tokens, 4] criticality 7 = aten::split.Tensor(%3, 4, -1)\n"
            "djinn::kv_append(%x, %4, tokens - 1)\n"
            "output %y\n");
}

TEST(Builder, every_kind_of_number_becomes_the_argument_that_it_is) {
  GraphBuilder g("numbers");
  g.op_n(0, "aten::f",
         {1, 2u, int64_t{3}, uint64_t{4}, 1.5f, 2.5, true, "text", DType::kBool, none,
          std::optional<Tensor>()});
  EXPECT_EQ(print_text(*std::move(g).finish()),
            "srg 1 \"numbers\"\n"
            "aten::f(1, 2, 3, 4, 1.5, 2.5, true, \"text\", bool, none, none)\n");
}

TEST(Builder, tied_weights_share_a_storage) {
  GraphBuilder g("tied");
  const Tensor a = g.weight("w", DType::kFloat32, {8, 4});
  const Tensor b = g.weight("w", DType::kFloat32, {8, 4});
  const Tensor c = g.weight("w", DType::kFloat32, {32});
  EXPECT_EQ(a.id, b.id);
  EXPECT_NE(a.id, c.id);
  EXPECT_EQ(std::move(g).finish()->storages.size(), 1u);
}

TEST(Builder, an_overflow_on_the_way_is_found_at_the_end) {
  GraphBuilder g("overflow");
  const Expr tokens = g.symbol("tokens", 1, 512);
  g.input("x", DType::kInt8, {tokens * INT64_MAX * 2});
  EXPECT_EQ(std::move(g).finish().error().code, ErrorCode::kMalformed);
}

TEST(Builder, builds_the_models_of_the_tests) {
  EXPECT_EQ(testing::bert_like().outputs.size(), 1u);
  EXPECT_EQ(testing::llama_like(512).outputs.size(), 1u);
}

}  // namespace
}  // namespace djinn::srg
