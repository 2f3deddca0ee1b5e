// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/program_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernel/sched/annotate.h"
#include "kernel/srg/text.h"

namespace djinn::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

srg::Graph graph(const std::string& head) {
  Result<srg::Graph> parsed = srg::parse_text(head +
                                              "\ninput %x : float32[2, 8]\n"
                                              "weight %w \"w\" : float32[4, 8]\n"
                                              "%y = aten::linear(%x, %w)\n"
                                              "%z = aten::gelu(%y)\n"
                                              "output %z\n");
  EXPECT_TRUE(parsed.ok());
  return *std::move(parsed);
}

ipc::ProgramReport report(ipc::ProgramState state, uint32_t fast_nodes) {
  ipc::ProgramReport program;
  program.program = {7};
  program.state = state;
  program.fast_nodes = fast_nodes;
  return program;
}

constexpr auto kAdmitted = ipc::ProgramState::kAdmitted;

TEST(ProgramGraph, of_a_fast_program_is_the_one_that_runs) {
  const auto shown = graph_as_run(report(kAdmitted, 1), graph("srg 1 \"g\" numerics \"fast\""));
  ASSERT_TRUE(shown.ok());
  const std::string text = text_of(*shown);
  EXPECT_THAT(text, StartsWith("# Fast: 1 of its 2 nodes are djinn's own.\n"));
  EXPECT_THAT(text, HasSubstr("\n# linear: 1 made, 0 left\n"));
  EXPECT_THAT(
      text,
      HasSubstr("\n# gated: 0 made, 1 left\n#   1: its dtype is not known, or has no kernel\n"));
  EXPECT_THAT(text, HasSubstr("djinn::linear_rows(%x, %w, none, false) {role \"head\", phase "));
  const Json json = to_json(*shown);
  EXPECT_EQ(json["id"], "000000000007");
  EXPECT_EQ(json["asked"], "fast");
  EXPECT_EQ(json["nodes"], 2);
  EXPECT_EQ(json["passes"][1].dump(), "{\"name\":\"linear\",\"made\":1,\"left\":0,\"reasons\":[]}");
}

TEST(ProgramGraph, says_what_nodes_are_for_and_cost) {
  Result<srg::Graph> decode = srg::parse_text(
      "srg 1 \"g\"\n"
      "symbol past 0..31 past\n"
      "input %x : float32[1, 1, 1, 8]\n"
      "sequence %k key 0 : float32[1, 1, 32, 8]\n"
      "%a = djinn::kv_append(%k, %x, past)\n"
      "view %seen of $1 : float32[1, 1, past + 1, 8] strides [256, 256, 8, 1]\n"
      "%y : float32[1, 1, 1, 8] = aten::scaled_dot_product_attention(%x, %seen, %seen)\n"
      "output %y\n");
  ASSERT_TRUE(decode.ok());
  const auto shown = graph_as_run(report(kAdmitted, 0), *std::move(decode));
  ASSERT_TRUE(shown.ok());
  const std::string text = text_of(*shown);
  EXPECT_THAT(text, HasSubstr("\n# At past 31: 1.02 kFLOP, 2.1 KiB read, 64 B written\n"));
  EXPECT_THAT(text, HasSubstr("\n# kv_append: 1 node, 0 FLOP, 32 B read, 32 B written\n"));
  const Json json = to_json(*shown);
  EXPECT_EQ(json["at"].dump(), "[{\"symbol\":\"past\",\"value\":31}]");
  EXPECT_EQ(json["cost"]["flops"], 4 * 32 * 8);
  EXPECT_EQ(json["not_counted"], 0);
  const Json& attention = json["annotations"][1];
  EXPECT_EQ(attention["role"], "attention");
  EXPECT_EQ(attention["phase"], "decode");
  EXPECT_EQ(attention["residency"], "output");
  EXPECT_EQ(attention["edges"][0]["bytes"], 32);
  EXPECT_EQ(attention["edges"][0]["criticality"], 255);
}

TEST(ProgramGraph, of_an_exact_program_is_as_it_was_defined) {
  const auto shown = graph_as_run(report(kAdmitted, 0), graph("srg 1 \"g\""));
  ASSERT_TRUE(shown.ok());
  srg::Graph annotated = graph("srg 1 \"g\"");
  sched::annotate(annotated);
  EXPECT_EQ(shown->graph, annotated);
  EXPECT_THAT(text_of(*shown), StartsWith("# Exact. Were it fast, the passes would do this:\n"));
  const auto instead = graph_as_run(report(kAdmitted, 0), graph("srg 1 \"g\" numerics \"fast\""));
  EXPECT_THAT(text_of(*instead), StartsWith("# Exact: it asked to be fast, and has no such form."));
}

TEST(ProgramGraph, what_nobody_has_admitted_is_not_rewritten) {
  const auto shown = graph_as_run(report(ipc::ProgramState::kAdmitting, 0),
                                  graph("srg 1 \"g\" numerics \"fast\""));
  ASSERT_TRUE(shown.ok());
  EXPECT_TRUE(shown->passes.empty());
  EXPECT_THAT(text_of(*shown), StartsWith("# It is not admitted yet.\nsrg 1"));
}

}  // namespace
}  // namespace djinn::ctl
