// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/pieces.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/given_for_tests.h"

namespace djinn::exec {
namespace {

struct Admitted {
  explicit Admitted(const srg::Graph& graph) : world(given_to(graph, at(graph)).weights, true) {
    EXPECT_EQ(message_of(world.admit(graph)), "");
    program = &static_cast<const CpuProgram&>(*world.program).admitted();
  }
  static std::vector<int64_t> at(const srg::Graph& graph) { return point_of(graph, 1, 5).symbols; }
  [[nodiscard]] const std::string& op(size_t step) const {
    return program->graph.nodes[program->steps[step].node].op;
  }

  World world;
  const AdmittedGraph* program = nullptr;
};

// The steps that are in a piece.
std::set<size_t> steps_in(const Pieces& pieces) {
  std::set<size_t> steps;
  for (size_t begin = 0; begin < pieces.ends.size(); ++begin) {
    for (size_t at = begin; at < pieces.ends[begin]; ++at) {
      EXPECT_TRUE(steps.insert(at).second) << at << " is in two pieces";
    }
  }
  return steps;
}

srg::Graph parsed(std::string_view text) {
  return *srg::parse_text(fmt::format("srg 1 \"made\"\n{}", text));
}

TEST(Pieces, what_no_symbol_reaches_is_one_piece) {
  const Admitted one(parsed(
      "input %x : float32[8, 8]\n%a = aten::neg(%x)\n%b = aten::mm(%a, %a)\n%c = aten::neg(%b)\n"
      "output %c\n"));
  const Pieces pieces = pieces_of(*one.program);
  EXPECT_EQ(pieces.ends[0], one.program->steps.size());
}

TEST(Pieces, a_number_that_moves_ends_a_piece_and_what_is_made_of_fixed_sizes_begins_another) {
  const Admitted one(
      parsed("symbol past 0..1023 past\n"
             "input %x : float32[8, 8]\n%a = aten::neg(%x)\n"
             "%b : float32[8, 8] = aten::add.Scalar(%a, past, 1)\n"
             "%c = aten::neg(%b)\n%d = aten::neg(%c)\noutput %d\n"));
  const Pieces pieces = pieces_of(*one.program);
  const std::set<size_t> steps = steps_in(pieces);
  for (size_t at = 0; at < one.program->steps.size(); ++at) {
    EXPECT_EQ(steps.contains(at), one.op(at) != "aten::add.Scalar") << one.op(at);
  }
}

TEST(Pieces, a_view_of_a_growing_tensor_reaches_what_is_made_of_it) {
  const Admitted one(parsed(
      "symbol past 0..1023 past\n"
      "input %x : float32[past + 1, 8]\n%a = aten::neg(%x)\n%b = aten::neg(%a)\noutput %b\n"));
  EXPECT_TRUE(steps_in(pieces_of(*one.program)).empty());
}

TEST(Pieces, rows_and_tokens_are_fixed_and_told_apart) {
  const Admitted one(
      parsed("symbol tokens 1..64 tokens\ninput %x : float32[tokens, 8]\n%a = aten::neg(%x)\n"
             "%b = aten::neg(%a)\noutput %b\n"));
  const Pieces pieces = pieces_of(*one.program);
  EXPECT_EQ(pieces.fixed_symbols, std::vector<srg::SymbolIndex>{0});
  EXPECT_FALSE(steps_in(pieces).empty());
}

TEST(Pieces, the_decode_steps_of_captured_models_are_pieces_but_for_attention) {
  for (const std::string_view name : {"gpt2", "llama", "qwen2"}) {
    const Admitted one(*srg::parse_text(
        srg::content_of(srg::captures_folder() / fmt::format("{}.decode.srg", name))));
    const std::set<size_t> steps = steps_in(pieces_of(*one.program));
    std::set<std::string> left_out;
    for (size_t at = 0; at < one.program->steps.size(); ++at) {
      if (!steps.contains(at)) left_out.insert(one.op(at));
    }
    EXPECT_TRUE(left_out.contains("djinn::kv_append"));
    EXPECT_TRUE(left_out.contains("aten::scaled_dot_product_attention"));
    EXPECT_LE(left_out.size(), 4u) << name;
    EXPECT_GT(steps.size() * 10, one.program->steps.size() * 8) << name;
  }
}

TEST(Pieces, a_step_that_is_taken_out_leaves_those_before_and_behind_it) {
  Pieces pieces;
  pieces.ends = {5, 0, 0, 0, 0, 0};
  take_out(pieces, 0, 2);
  EXPECT_EQ(pieces.ends, (std::vector<size_t>{2, 0, 0, 5, 0, 0}));
  take_out(pieces, 0, 0);
  EXPECT_EQ(pieces.ends, (std::vector<size_t>{0, 2, 0, 5, 0, 0}));
  take_out(pieces, 3, 4);
  EXPECT_EQ(pieces.ends, (std::vector<size_t>{0, 2, 0, 4, 0, 0}));
}

TEST(Pieces, values_into_steps_are_those_that_they_do_not_make) {
  const Admitted one(
      parsed("input %x : float32[8, 8]\ninput %y : float32[8, 8]\n%a = aten::neg(%x)\n"
             "%b = aten::cat([%a, %y], 0)\n%c = aten::neg(%b)\noutput %c\n"));
  const auto steps = std::span(one.program->steps);
  const srg::ValueId x = 0, y = 1, a = 2;
  EXPECT_EQ(values_into(steps), (std::vector<srg::ValueId>{x, y}));
  EXPECT_EQ(values_into(steps.subspan(1)), (std::vector<srg::ValueId>{y, a}));
}

}  // namespace
}  // namespace djinn::exec
