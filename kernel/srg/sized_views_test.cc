// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "kernel/srg/text.h"
#include "kernel/srg/unify.h"

namespace djinn::srg {
namespace {

using ::testing::HasSubstr;

// What unify() makes of the texts that `text` gives for 7, 8 and 13 tokens.
template <typename Text>
std::string united(Text&& text) {
  std::vector<Graph> graphs;
  const std::vector<int64_t> tokens = {7, 8, 13};
  for (const int64_t count : tokens) {
    auto graph = parse_text("srg 1 \"t\"\n" + text(count));
    EXPECT_TRUE(graph.ok()) << (graph ? "" : graph.error().message);
    if (!graph) return "";
    graphs.push_back(*std::move(graph));
  }
  std::vector<Recording> recordings;
  for (size_t i = 0; i < tokens.size(); ++i) recordings.push_back({&graphs[i], {tokens[i]}});
  const auto made = unify(recordings, {{"tokens", 1, 100, SymbolRole::kTokens}});
  return made ? print_text(*made) : made.error().message;
}

std::string replaced(std::string text, int64_t tokens) {
  const auto put = [&](std::string_view name, int64_t number) {
    for (size_t at = 0; (at = text.find(name)) != std::string::npos;) {
      text.replace(at, name.size(), std::to_string(number));
    }
  };
  put("8TT", 8 * tokens * tokens);
  put("4TT", 4 * tokens * tokens);
  put("2TT", 2 * tokens * tokens);
  put("4TU", 4 * tokens * (tokens + 1));
  put("TT", tokens * tokens);
  put("TU", tokens * (tokens + 1));
  put("T", tokens);
  put("U", tokens + 1);
  return text;
}

std::string united_text(const std::string& text) {
  return united([&](int64_t tokens) { return replaced(text, tokens); });
}

TEST(SizedViews, scores_of_tokens_by_tokens_are_seen_by_their_sizes) {
  const std::string made = united_text(
      "input %x \"x\" : float32[4, T, 16]\n"
      "%s : float32[4, T, T] = aten::bmm(%x, %x)\n"
      "%v = aten::as_strided(%s, [1, 4, T, T], [4TT, TT, T, 1], 0)\n"
      "%y : float32[1, 4, T, T] = aten::relu(%v)\n"
      "output %y\n");
  EXPECT_THAT(made, HasSubstr("= aten::view(%s, [1, 4, tokens, tokens])"));
}

// As heads of keys are, or of a mask.
TEST(SizedViews, what_is_repeated_by_copying_is_seen_once) {
  const std::string text =
      "input %x \"x\" : float32[1, 2, T, T]\n"
      "%s : float32[1, 2, T, T] = aten::relu(%x)\n"
      "%m : float32[8TT] = aten::zeros([8TT], dtype=float32)\n"
      "%v = aten::as_strided(%m, [1, 2, 4, T, T], [8TT, 4TT, TT, T, 1], 0)\n"
      "%r = aten::as_strided(%s, [1, 2, 4, T, T], [2TT, TT, 0, T, 1], 0)\n"
      "%w = aten::copy_(%v, %r, false)\n";
  const std::string made = united_text(text + "output %m\n");
  EXPECT_THAT(made, HasSubstr("%r = aten::view(%s, [1, 2, 1, tokens, tokens])"));
  EXPECT_THAT(made, HasSubstr("%v = aten::view(%m, [1, 2, 4, tokens, tokens])"));
  for (const char* reader : {"%y = aten::relu(%r)\noutput %m\n", "output %r\n",
                             "%y = aten::cat([%r, %r], 0)\noutput %m\n",
                             "%y = aten::copy_(%r, %v, false)\noutput %m\n"}) {
    EXPECT_THAT(united_text(text + reader), HasSubstr("no affine function of tokens")) << reader;
  }
}

// Of one position, that of a sink beside the tokens.
TEST(SizedViews, a_part_in_one_dimension_is_a_slice) {
  const std::string text =
      "input %x \"x\" : float32[1, 4, T, U]\n"
      "%s : float32[1, 4, T, U] = aten::relu(%x)\n"
      "%v = aten::as_strided(%s, [1, 4, T, T], [4TU, TU, U, 1], AT)\n"
      "%y : float32[1, 4, T, T] = aten::relu(%v)\n"
      "output %y\n";
  std::string first = text, second = text;
  first.replace(first.find("AT"), 2, "0");
  second.replace(second.find("AT"), 2, "1");
  EXPECT_THAT(united_text(first), HasSubstr("= aten::slice.Tensor(%s, 3, 0, tokens, 1)"));
  EXPECT_THAT(united_text(second), HasSubstr("= aten::slice.Tensor(%s, 3, 1, tokens + 1, 1)"));
}

TEST(SizedViews, memory_that_is_made_as_a_row_gets_the_sizes_that_it_is_seen_with) {
  const std::string made = united_text(
      "input %x \"x\" : bfloat16[4, T, T]\n"
      "%m : float32[4TT] = aten::zeros([4TT], dtype=float32)\n"
      "%v = aten::as_strided(%m, [4, T, T], [TT, T, 1], 0)\n"
      "%w = aten::copy_(%v, %x, false)\n"
      "%y : float32[4, T, T] = aten::relu(%v)\n"
      "output %y\n");
  EXPECT_THAT(made, HasSubstr("float32[4, tokens, tokens] = aten::zeros([4, tokens, tokens], "));
  EXPECT_THAT(made, HasSubstr("= aten::view(%m, [4, tokens, tokens])"));
}

TEST(SizedViews, views_whose_strides_fit_stay_as_they_were_recorded) {
  const std::string made = united_text(
      "input %x \"x\" : float32[4, T, 16]\n"
      "%a : float32[4, T, 16] = aten::relu(%x)\n"
      "%b = aten::as_strided(%a, [1, 4, T, 16], [64, 16, 64, 1], 0)\n"
      "%s : float32[4, T, T] = aten::bmm(%x, %x)\n"
      "%v = aten::as_strided(%s, [1, 4, T, T], [4TT, TT, T, 1], 0)\n"
      "%y : float32[1, 4, T, T] = aten::relu(%v)\n"
      "output %y\n");
  EXPECT_THAT(made, HasSubstr("%b = aten::as_strided(%a, [1, 4, tokens, 16], [64, 16, 64, 1], 0)"));
  EXPECT_THAT(made, HasSubstr("aten::view(%s"));
}

// What is turned, does not begin at a whole element of a dimension, or is more than the base,
// cannot be said by sizes alone: the complaint is of the numbers that were recorded.
TEST(SizedViews, other_views_are_no_function_of_the_symbols) {
  for (const char* view : {"[4, T, T], [TT, 1, T], 0", "[1, T, T], [TT, T, 1], TT",
                           "[3, T, T], [TT, T, 1], 1", "[5, T, T], [TT, T, 1], 0"}) {
    const std::string made = united_text(
        "input %x \"x\" : float32[4, T, 16]\n"
        "%s : float32[4, T, T] = aten::bmm(%x, %x)\n"
        "%v = aten::as_strided(%s, " +
        std::string(view) +
        ")\n"
        "%y = aten::relu(%v)\n"
        "output %y\n");
    if (std::string_view(view).starts_with("[1,")) {
      EXPECT_THAT(made, HasSubstr("aten::slice.Tensor(%s, 0, 1, 2, 1)")) << view;
    } else {
      EXPECT_THAT(made, HasSubstr("49, 64, 169 and no affine function of tokens")) << view;
    }
  }
}

TEST(SizedViews, a_base_with_strides_of_its_own_is_left_alone) {
  const std::string made = united_text(
      "input %x \"x\" : float32[4, T, 16]\n"
      "%s : float32[4, T, T] strides [1, 4, 4TT] = aten::bmm(%x, %x)\n"
      "%v = aten::as_strided(%s, [1, 4, T, T], [4TT, TT, T, 1], 0)\n"
      "%y = aten::relu(%v)\n"
      "output %y\n");
  EXPECT_THAT(made, HasSubstr("no affine function of tokens"));
}

}  // namespace
}  // namespace djinn::srg
