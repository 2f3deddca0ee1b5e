// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernel/srg/limits.h"
#include "kernel/srg/test_graphs.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Graph parsed(std::string_view text) {
  auto graph = parse_text(text);
  EXPECT_TRUE(graph.ok()) << (graph ? "" : graph.error().message);
  return graph ? *std::move(graph) : Graph{};
}

TEST(Text, the_example_of_the_header_reads_as_what_it_says) {
  const Graph graph = parsed(R"(srg 1 "one linear"
symbol tokens 1..512 tokens
input %x : float32[tokens, 384]   # a comment
weight %w "encoder.weight" : float32[384, 384]
%y = aten::linear(%x, %w,
                  none) {role "mlp"}
output %y
)");
  EXPECT_TRUE(verify(graph).ok());
  GraphBuilder g("one linear");
  const Expr tokens = g.symbol("tokens", 1, 512, SymbolRole::kTokens);
  const Tensor x = g.input("x", DType::kFloat32, {tokens, 384});
  const Tensor w = g.weight("encoder.weight", DType::kFloat32, {384, 384});
  g.name(w, "w");
  const auto role = g.role("mlp");
  g.output("y", g.op("aten::linear", {x, w, none}));
  EXPECT_EQ(graph, *std::move(g).finish());
}

TEST(Text, the_models_read_back_as_they_were) {
  for (const Graph& graph :
       {testing::bert_like(), testing::llama_like(1), testing::llama_like(512), Graph{}}) {
    EXPECT_EQ(parsed(print_text(graph)), graph) << print_text(graph);
  }
}

TEST(Text, a_weight_that_is_seen_otherwise_reads_back_as_it_was) {
  const std::string text = R"(srg 1 "views"
weight %a : float32[8]
storage weight "b"
view %b of $1 : float16[16]
weight %c : float32[8] strides [1]
output %a
)";
  const Graph graph = parsed(text);
  EXPECT_TRUE(verify(graph).ok());
  EXPECT_TRUE(graph.storages[0].is_declared);
  EXPECT_FALSE(graph.storages[1].is_declared);
  EXPECT_FALSE(graph.storages[2].is_declared);
  EXPECT_EQ(print_text(graph), text);
}

TEST(Text, every_verified_graph_reads_back_as_it_was_to_the_bit) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Graph graph = testing::RandomGraph(seed).make();
    const std::string text = print_text(graph);
    const Graph again = parsed(text);
    ASSERT_EQ(again, graph) << "seed " << seed << "\n" << text;
    ASSERT_EQ(print_text(again), text);  // tells -0.0 from 0.0, which == does not
  }
}

TEST(Text, storages_keep_their_numbers_whatever_views_come_first) {
  Graph graph = parsed(
      "srg 1 \"\"\nstorage weight \"a\"\ninput %x : int8[2]\n"
      "view %y of $0 : int8[4]\nstorage sequence key 3\nstorage input \"z\" role "
      "positions\n");
  EXPECT_TRUE(verify(graph).ok());
  EXPECT_EQ(graph.storages.size(), 4u);
  EXPECT_EQ(parsed(print_text(graph)), graph);
}

TEST(Text, a_result_may_claim_its_layout) {
  const char* const text =
      "srg 1 \"\"\ninput %x : float32[4, 3]\n"
      "%y : float32[4, 3] strides [1, 4] = aten::relu(%x)\noutput %y\n";
  const Graph graph = parsed(text);
  EXPECT_TRUE(verify(graph).ok());
  EXPECT_TRUE(graph.values[1].claims_sizes);
  EXPECT_EQ(graph.values[1].strides, (std::vector<Expr>{1, 4}));
  EXPECT_EQ(print_text(graph), text);
}

TEST(Text, a_nan_reads_back_as_the_one_nan) {
  const Graph graph = parsed("srg 1 \"\"\naten::f(nan, -nan, [nan, 1.0])\n");
  EXPECT_TRUE(verify(graph).ok());
  EXPECT_TRUE(std::isnan(std::get<double>(graph.nodes[0].arguments[1].value)));
  EXPECT_THAT(print_text(graph), HasSubstr("aten::f(nan, nan, [nan, 1.0])"));
}

TEST(Text, integers_doubles_and_flags_stay_apart) {
  const Graph graph = parsed(
      "srg 1 \"\"\naten::f(1, 1.0, true, [1], [1.0], [true], [], values[], "
      "doubles[], bools[], float32, -1e5, -9223372036854775808)\n");
  const auto& arguments = graph.nodes[0].arguments;
  const std::vector<size_t> kinds = {3, 5, 7, 4, 6, 8, 4, 2, 6, 8, 10, 5, 3};
  ASSERT_EQ(arguments.size(), kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) EXPECT_EQ(arguments[i].value.index(), kinds[i]) << i;
}

struct BadText {
  const char* body;  // behind the header line
  const char* place;
  const char* why;
};

class TextErrors : public ::testing::TestWithParam<BadText> {};

TEST_P(TextErrors, name_line_and_column_and_what_was_expected) {
  const auto graph = parse_text(std::string("srg 1 \"bad\"\n") + GetParam().body);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code, ErrorCode::kMalformed);
  EXPECT_THAT(graph.error().message, StartsWith(std::string("line ") + GetParam().place + ": "));
  EXPECT_THAT(graph.error().message, HasSubstr(GetParam().why));
}

constexpr BadText kBadTexts[] = {
    {"frobnicate %x", "2:12", "Expected one of symbol, storage"},
    {"symbol none 1..2", "2:8", "meaning of its own"},
    {"symbol a 1..2\nsymbol a 1..2", "3:8", "declared already"},
    {"symbol a 1 2", "2:12", "'..'"},
    {"symbol a 1..2 king", "2:15", "a symbol's role"},
    {"symbol a 1..99999999999999999999", "2:13", "cannot be read"},
    {"input %x : float32", "2:19", "sizes in brackets"},
    {"input %x : float31[2]", "2:12", "a dtype"},
    {"input %x : int8[2]\ninput %x : int8[2]", "3:7", "taken by an earlier value"},
    {"input %1 \"x\" : int8[2]", "2:7", "This is value 0"},
    {"input %0 : int8[2]", "2:10", "name in quotes"},
    {"input %x : int8[tokens]", "2:17", "no symbol 'tokens'"},
    {"input %x : int8[2] role king", "2:25", "an input's role"},
    {"input %x : int8[9223372036854775807 + 1]", "2:17", "64-bit"},
    {"view %x of $0 : int8[2]", "2:12", "only 0 storages"},
    {"view %x of %x : int8[2]", "2:12", "not defined before its use"},
    {"%y = aten::f(%x)", "2:14", "not defined before its use"},
    {"%y = aten::f(%y)", "2:14", "not defined before its use"},
    {"%y = f(1)", "2:6", "an operator"},
    {"%y = aten::f(1 2)", "2:16", "',' or ')'"},
    {"%y = aten::f([1, 2.0])", "2:18", "an integer or a symbol"},
    {"%y = aten::f([1.0, 2])", "2:20", "a number with a point"},
    {"%y = aten::f([true, 1])", "2:21", "true or false"},
    {"%y = aten::f(strings[])", "2:14", "values[], doubles[] or bools[]"},
    {"%y = aten::f(\"abc)", "2:14", "has no end"},
    {"%y = aten::f(\"\\q\")", "2:14", "unknown escape"},
    {"%y = aten::f(1.0e)", "2:14", "cannot be read"},
    {"%y = aten::f(1x)", "2:14", "cannot be read"},
    {"%y = aten::f(", "2:14", "the end of the text"},
    {"%y = aten::f() {colour \"red\"}", "2:24", "one of module, role"},
    {"%y = aten::f() {priority 2147483648}", "2:26", "32 bits"},
    {"%y = aten::f() %z", "2:16", "the end of the line"},
    {"%y : float32 = aten::f()\nview %z of %y : int8[1]", "3:12", "made by a node"},
    {"output %y", "2:8", "not defined"},
    {"& %y", "2:1", "begins nothing"},
    {"% = aten::f()", "2:1", "must follow '%'"}};

INSTANTIATE_TEST_SUITE_P(Table, TextErrors, ::testing::ValuesIn(kBadTexts));

TEST(Text, a_text_without_its_header_is_refused) {
  EXPECT_THAT(parse_text("").error().message, StartsWith("line 1:1: Expected 'srg 1"));
  EXPECT_THAT(parse_text("srg 2 \"x\"").error().message,
              StartsWith("line 1:5: Expected version 1"));
}

TEST(Text, unknown_numerics_are_told_with_those_that_there_are) {
  const auto graph = parse_text("srg 1 \"x\" numerics \"quick\"\n");
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code, ErrorCode::kMalformed);
  EXPECT_THAT(graph.error().message,
              StartsWith("line 1:20: There are the numerics \"exact\", \"fast\" and"));
}

TEST(Text, a_text_over_the_limit_is_refused_unread) {
  const std::string text(limits::kSourceBytes + 1, ' ');
  EXPECT_EQ(parse_text(text).error().code, ErrorCode::kLimitExceeded);
}

TEST(Text, damaged_texts_never_crash_the_parser_and_what_it_accepts_prints) {
  Random random(3);
  for (uint64_t round = 0; round < 3000; ++round) {
    std::string text = print_text(testing::RandomGraph(round % 50).make());
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      const size_t at = random.below(text.size());
      if (random.below(2) == 0) {
        text[at] = static_cast<char>(random.below(256));
      } else {
        text.erase(at, random.below(8));
      }
      if (text.empty()) text = " ";
    }
    const auto graph = parse_text(text);
    if (!graph) continue;
    (void)verify(*graph);
    ASSERT_FALSE(print_text(*graph).empty());
  }
}

}  // namespace
}  // namespace djinn::srg
