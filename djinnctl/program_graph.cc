// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/program_graph.h"

#include <fmt/format.h>

#include <numeric>
#include <string_view>
#include <utility>

#include "djinnctl/text.h"
#include "kernel/srg/names.h"
#include "kernel/srg/rewrite/rewrite.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"

namespace djinn::ctl {
namespace {

uint32_t left_by(const srg::PassReport& pass) {
  return std::accumulate(pass.reasons.begin(), pass.reasons.end(), 0u,
                         [](uint32_t sum, const auto& one) { return sum + one.second; });
}

// Says what is run, in one sentence.
std::string summary_of(const ProgramGraph& shown) {
  if (shown.program.state != ipc::ProgramState::kAdmitted) return "It is not admitted yet.";
  if (shown.program.fast_nodes > 0) {
    return fmt::format("Fast: {} of its {} nodes are djinn's own.", shown.program.fast_nodes,
                       shown.graph.nodes.size());
  }
  if (shown.asked != srg::Numerics::kExact)
    return "Exact: it asked to be fast, and has no such form.";
  return "Exact. Were it fast, the passes would do this:";
}

}  // namespace

Result<ProgramGraph> graph_as_run(const ipc::ProgramReport& program, srg::Graph graph) {
  DJINN_CHECK(srg::verify(graph));
  ProgramGraph shown{program, graph.numerics, {}, {}};
  if (program.state != ipc::ProgramState::kAdmitted) {
    shown.graph = std::move(graph);
    return shown;
  }
  srg::Rewriting rewriting = srg::rewrite(graph);
  shown.passes = std::move(rewriting.passes);
  shown.graph = program.fast_nodes > 0 ? std::move(rewriting.graph) : std::move(graph);
  return shown;
}

std::string text_of(const ProgramGraph& shown) {
  std::string text = fmt::format("# {}\n", summary_of(shown));
  for (const srg::PassReport& pass : shown.passes) {
    text += fmt::format("# {}: {} made, {} left\n", pass.name, pass.fired, left_by(pass));
    for (const auto& [reason, nodes] : pass.reasons)
      text += fmt::format("#   {}: {}\n", nodes, reason);
  }
  return text + srg::print_text(shown.graph);
}

Json to_json(const ProgramGraph& shown) {
  Json passes = Json::array();
  for (const srg::PassReport& pass : shown.passes) {
    Json reasons = Json::array();
    for (const auto& [reason, nodes] : pass.reasons) {
      reasons.push_back({{"reason", reason}, {"nodes", nodes}});
    }
    passes.push_back({{"name", pass.name},
                      {"made", pass.fired},
                      {"left", left_by(pass)},
                      {"reasons", std::move(reasons)}});
  }
  return {{"id", id_text(shown.program.program)},
          {"asked", std::string(srg::name_of(shown.asked))},
          {"fast_nodes", shown.program.fast_nodes},
          {"nodes", shown.graph.nodes.size()},
          {"passes", std::move(passes)},
          {"text", srg::print_text(shown.graph)}};
}

}  // namespace djinn::ctl
