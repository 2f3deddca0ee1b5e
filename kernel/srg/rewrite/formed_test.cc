// SPDX-License-Identifier: Apache-2.0

// What passes make of graphs whose weights are int8, and what they say of other readers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernel/srg/captures_for_tests.h"
#include "kernel/srg/rewrite/rewrite.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::srg {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// w, [4, 8], is int8, of a graph whose weights are in order, or turned around; p, of the same
// sizes, is not.
constexpr const char* kInOrder = "weight %w \"w\" : float32[4, 8]\n";
constexpr const char* kAround = "weight %w \"w\" : float32[8, 4] strides [1, 8]\n";

Rewriting of_int8(const std::string& lines, const char* bound = kInOrder) {
  const Result<Graph> graph = parse_text(
      "srg 1 \"test\"\n"
      "symbol tokens 1..512 tokens\n"
      "input %x : float32[tokens, 8]\n"
      "input %many : float32[3, 11, 8]\n"
      "input %u : float32[tokens, 4]\n"
      "input %ids : int64[tokens]\n"
      "weight %p \"p\" : float32[4, 8]\n" +
      std::string(bound) + lines);
  EXPECT_TRUE(graph) << graph.error().message;
  EXPECT_TRUE(verify(*graph).ok()) << verify(*graph).error().message;
  FormedWeights formed(graph->storages.size());
  for (size_t i = 0; i < formed.size(); ++i) {
    if (graph->storages[i].name != "w") continue;
    if (graph->storages[i].kind == StorageKind::kWeight) formed[i] = {DType::kFloat32, 4, 8};
  }
  return rewrite(*graph, formed);
}

std::string text_of(const std::string& lines, const char* bound = kInOrder) {
  const Rewriting rewriting = of_int8(lines + "output %y\n", bound);
  EXPECT_EQ(rewriting.left_with_forms, "");
  return print_text(rewriting.graph);
}

std::string left(const std::string& lines) {
  return of_int8(lines).left_with_forms;
}

TEST(FormedWeights, products_read_the_weight_itself_however_it_was_turned) {
  EXPECT_THAT(text_of("%y = aten::linear(%x, %w)\n"),
              HasSubstr("djinn::linear_rows(%x, %w, none, false)"));
  EXPECT_THAT(text_of("%y = aten::linear(%many, %w)\n"),
              HasSubstr("djinn::linear_rows(%many, %w, none, false)"));
  EXPECT_THAT(text_of("%y = aten::mm(%u, %w)\n"),
              HasSubstr("djinn::linear_rows(%u, %w, none, true)"));
  const std::string twice =
      "%z = aten::mm(%x, %t)\n%r = aten::relu(%z)\n"
      "%q = aten::mm(%r, %w)\n%y = aten::mm(%q, %t)\n";
  for (const std::string turn :
       {"%t = aten::t(%w)\n", "%t = aten::as_strided(%w, [8, 4], [1, 8], 0)\n"}) {
    const std::string text = text_of(turn + twice);
    EXPECT_THAT(text, HasSubstr("%z = djinn::linear_rows(%x, %w, none, false)"));
    EXPECT_THAT(text, HasSubstr("%y = djinn::linear_rows(%q, %w, none, false)"));
    EXPECT_THAT(text, Not(HasSubstr("%t"))) << "nobody reads the view now";
  }
}

TEST(FormedWeights, a_weight_that_is_bound_turned_around_is_read_as_it_is_bound) {
  EXPECT_THAT(text_of("%y = aten::mm(%x, %w)\n", kAround),
              HasSubstr("djinn::linear_rows(%x, %w, none, true)"));
  EXPECT_THAT(text_of("%n = aten::t(%w)\n%y = aten::mm(%u, %n)\n", kAround),
              HasSubstr("djinn::linear_rows(%u, %w, none, false)"));
  EXPECT_EQ(of_int8("%y = aten::embedding(%w, %ids)\noutput %y\n", kAround).left_with_forms,
            "Node 0, aten::embedding, reads the weight w, which is int8.");
}

TEST(FormedWeights, rows_are_looked_up) {
  EXPECT_THAT(text_of("%y = aten::embedding(%w, %ids, 3, false, false)\n"),
              HasSubstr("djinn::embedding_rows(%w, %ids, float32)"));
  EXPECT_THAT(text_of("%y = aten::embedding(%p, %ids)\n"), HasSubstr("aten::embedding(%p, %ids)"))
      << "the other weight is as it was";
}

TEST(FormedWeights, whoever_else_reads_one_is_named) {
  EXPECT_EQ(left("%y = aten::neg(%w)\noutput %y\n"),
            "Node 0, aten::neg, reads the weight w, which is int8.");
  EXPECT_EQ(left("%t = aten::t(%w)\n%n = aten::neg(%t)\n%y = aten::mm(%x, %t)\n"
                 "output %y\noutput %n\n"),
            "Node 1, aten::neg, reads the weight w, which is int8.");
  EXPECT_EQ(left("%h = aten::as_strided(%w, [2, 8], [8, 1], 0)\n%y = aten::linear(%x, %h)\n"
                 "output %y\n"),
            "Node 1, aten::linear, reads the weight w, which is int8.");
  EXPECT_EQ(left("%t = aten::t(%w)\n%y = aten::embedding(%t, %ids)\noutput %y\n"),
            "Node 1, aten::embedding, reads the weight w, which is int8.");
  EXPECT_EQ(left("%y = aten::relu(%x)\noutput %y\noutput %w\n"),
            "An output of the graph is the weight w, which is int8.");
  EXPECT_EQ(left("%y = aten::linear(%w, %p)\noutput %y\n"),
            "Node 0, djinn::linear_rows, reads the weight w, which is int8.");
  EXPECT_EQ(left("%y = aten::neg(%p)\noutput %y\n"), "");
  EXPECT_EQ(left("%t = aten::t(%w)\n%y = aten::addmm(%u, %x, %t)\noutput %y\n"),
            "Node 1, aten::addmm, reads the weight w, which is int8.")
      << "kernels of int8 take a bias of one dimension";
}

// As a load plan would have them that says nothing but that matrices are int8.
FormedWeights matrices_of(const Graph& graph) {
  FormedWeights formed(graph.storages.size());
  std::vector<bool> seen(graph.storages.size(), false);
  for (const Value& value : graph.values) {
    if (value.storage == kLocalStorage || seen[value.storage]) continue;
    seen[value.storage] = true;
    const Storage& storage = graph.storages[value.storage];
    const bool is_named = storage.name.find(".weight") != std::string::npos &&
                          storage.name.find(".gate.weight") == std::string::npos;
    const bool is_float = value.dtype == DType::kBFloat16 || value.dtype == DType::kFloat32;
    if (storage.kind != StorageKind::kWeight || !is_named || !is_float) continue;
    if (value.sizes.size() != 2 || !value.sizes[0].is_constant()) continue;
    if (!value.sizes[1].is_constant()) continue;
    const int64_t first = value.sizes[0].constant, second = value.sizes[1].constant;
    const bool is_turned = !value.strides.empty() && value.strides[0] == Expr(1);
    formed[value.storage] = is_turned ? FormedWeight{value.dtype, second, first}
                                      : FormedWeight{value.dtype, first, second};
  }
  return formed;
}

TEST(FormedWeights, once_of_nearly_all_captures_are_read_by_nothing_else) {
  size_t all = 0, computable = 0;
  for (const Capture& one : read_captures()) {
    const Rewriting rewriting = rewrite(one.graph, matrices_of(one.graph));
    ++all;
    computable += rewriting.left_with_forms.empty() ? 1 : 0;
  }
  EXPECT_GE(computable * 100, all * 98) << computable << " of " << all;
}

}  // namespace
}  // namespace djinn::srg
