// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/program_graph.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "djinnctl/text.h"
#include "kernel/base/size_text.h"
#include "kernel/sched/annotate.h"
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

struct RoleCost {
  uint32_t nodes = 0;
  sched::Cost cost;
};

std::map<std::string, RoleCost> costs_by_role(const ProgramGraph& shown) {
  std::map<std::string, RoleCost> roles;
  for (size_t i = 0; i < shown.cost.nodes.size(); ++i) {
    RoleCost& role = roles[shown.graph.nodes[i].annotation.role];
    ++role.nodes;
    role.cost = role.cost + shown.cost.nodes[i].value_or(sched::Cost{});
  }
  return roles;
}

// "12.3 MFLOP, 4.0 KiB read, 16 B written"
std::string cost_text(const sched::Cost& cost) {
  double flops = static_cast<double>(cost.flops);
  size_t unit = 0;
  constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  for (; flops >= 1000 && unit + 1 < std::size(kUnits); ++unit) flops /= 1000;
  return fmt::format("{:.3g} {}FLOP, {} read, {} written", flops, kUnits[unit],
                     size_text(cost.read), size_text(cost.written));
}

std::string costs_text(const ProgramGraph& shown) {
  if (shown.cost.nodes.empty()) return {};
  std::string at;
  for (const srg::Symbol& symbol : shown.graph.symbols) {
    at += fmt::format("{}{} {}", at.empty() ? "At " : ", ", symbol.name, symbol.max);
  }
  std::string text =
      fmt::format("# {}{}{}\n", at, at.empty() ? "" : ": ", cost_text(shown.cost.total));
  if (shown.cost.unknown > 0) {
    text += fmt::format("# not counted: {}, of unknown sizes\n",
                        count_text(shown.cost.unknown, "node"));
  }
  for (const auto& [role, sum] : costs_by_role(shown)) {
    text += fmt::format("# {}: {}, {}\n", role.empty() ? "other" : role,
                        count_text(sum.nodes, "node"), cost_text(sum.cost));
  }
  return text;
}

Json json_of(const sched::Cost& cost) {
  return {{"flops", cost.flops}, {"bytes_read", cost.read}, {"bytes_written", cost.written}};
}

Json roles_json(const ProgramGraph& shown) {
  Json roles = Json::array();
  for (const auto& [role, sum] : costs_by_role(shown)) {
    Json one = {{"role", role}, {"nodes", sum.nodes}};
    one.update(json_of(sum.cost));
    roles.push_back(std::move(one));
  }
  return roles;
}

Json symbols_json(const srg::Graph& graph) {
  Json at = Json::array();
  for (const srg::Symbol& symbol : graph.symbols) {
    at.push_back({{"symbol", symbol.name}, {"value", symbol.max}});
  }
  return at;
}

// Bytes of an edge are those that each run moves along it.
Json nodes_json(const ProgramGraph& shown) {
  Json nodes = Json::array();
  const auto shapes = sched::shapes_at(shown.graph, sched::upper_symbols(shown.graph), shown.forms);
  for (size_t i = 0; i < shown.cost.nodes.size(); ++i) {
    const srg::Node& node = shown.graph.nodes[i];
    Json edges = Json::array();
    for (const srg::ValueId id : node.outputs) {
      edges.push_back({{"value", id},
                       {"bytes", shapes[id] ? sched::byte_count(*shapes[id]) : 0},
                       {"criticality", shown.graph.values[id].criticality}});
    }
    Json one = {{"op", node.op},
                {"role", node.annotation.role},
                {"phase", std::string(srg::name_of(node.annotation.phase))},
                {"residency", std::string(srg::name_of(node.annotation.residency))},
                {"modality", std::string(srg::name_of(node.annotation.modality))}};
    one.update(json_of(shown.cost.nodes[i].value_or(sched::Cost{})));
    one["edges"] = std::move(edges);
    nodes.push_back(std::move(one));
  }
  return nodes;
}

}  // namespace

Result<ProgramGraph> graph_as_run(const ipc::ProgramReport& program, srg::Graph graph,
                                  std::span<const srg::TensorEntry> model) {
  DJINN_CHECK(srg::verify(graph));
  ProgramGraph shown{program, graph.numerics, {}, {}, {}, {}};
  if (program.state != ipc::ProgramState::kAdmitted) {
    shown.graph = std::move(graph);
    return shown;
  }
  srg::FormedWeights formed = srg::formed_weights(graph, model);
  for (const auto& one : formed) {
    shown.forms.push_back(one ? srg::WeightForm::kInt8 : srg::WeightForm::kPlain);
  }
  srg::Rewriting rewriting = srg::rewrite(graph, std::move(formed));
  shown.passes = std::move(rewriting.passes);
  shown.graph = program.fast_nodes > 0 ? std::move(rewriting.graph) : std::move(graph);
  sched::annotate(shown.graph, shown.forms);
  shown.cost = sched::cost_at(shown.graph, sched::upper_symbols(shown.graph), shown.forms);
  return shown;
}

std::string text_of(const ProgramGraph& shown) {
  std::string text = fmt::format("# {}\n", summary_of(shown));
  for (const srg::PassReport& pass : shown.passes) {
    text += fmt::format("# {}: {} made, {} left\n", pass.name, pass.fired, left_by(pass));
    for (const auto& [reason, nodes] : pass.reasons)
      text += fmt::format("#   {}: {}\n", nodes, reason);
  }
  return text + costs_text(shown) + srg::print_text(shown.graph);
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
          {"at", symbols_json(shown.graph)},
          {"cost", json_of(shown.cost.total)},
          {"not_counted", shown.cost.unknown},
          {"roles", roles_json(shown)},
          {"annotations", nodes_json(shown)},
          {"text", srg::print_text(shown.graph)}};
}

}  // namespace djinn::ctl
