// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/program_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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
  EXPECT_THAT(text, HasSubstr("\n# gated: 0 made, 1 left\n#   1: it is gelu without tanh\n"));
  EXPECT_THAT(text, HasSubstr("%y = djinn::linear_rows(%x, %w, none, false)\n"));
  const Json json = to_json(*shown);
  EXPECT_EQ(json["id"], "000000000007");
  EXPECT_EQ(json["asked"], "fast");
  EXPECT_EQ(json["nodes"], 2);
  EXPECT_EQ(json["passes"][1].dump(), "{\"name\":\"linear\",\"made\":1,\"left\":0,\"reasons\":[]}");
}

TEST(ProgramGraph, of_an_exact_program_is_as_it_was_defined) {
  const auto shown = graph_as_run(report(kAdmitted, 0), graph("srg 1 \"g\""));
  ASSERT_TRUE(shown.ok());
  EXPECT_EQ(shown->graph, graph("srg 1 \"g\""));
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
