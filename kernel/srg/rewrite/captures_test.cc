// SPDX-License-Identifier: Apache-2.0

// What the passes make of captures of real models; passes.txt beside those has it in full.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/srg/captures_for_tests.h"
#include "kernel/srg/rewrite/constant_matrix.h"
#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::srg {
namespace {

constexpr const char* kHeader =
    "# SPDX-License-Identifier: Apache-2.0\n"
    "#\n"
    "# What each pass of kernel/srg/rewrite makes of each capture, what it leaves, and why.\n"
    "# Written anew by: DJINN_WRITE_PASSES=1 build/release/bin/rewrite-test\n"
    "# ./dev matrix --captures does so, once it has written the captures.\n";

struct Rewritten {
  Capture capture;
  Rewriting rewriting;
};

const std::vector<Rewritten>& all() {
  static const std::vector<Rewritten> made = [] {
    std::vector<Rewritten> list;
    for (Capture& one : read_captures()) {
      Rewriting rewriting = rewrite(one.graph);
      list.push_back({std::move(one), std::move(rewriting)});
    }
    return list;
  }();
  return made;
}

bool is_decode(const Rewritten& one) {
  return one.capture.name.ends_with(".decode");
}

// Of a prompt that was computed elsewhere.
bool only_adopts(const Rewritten& one) {
  return one.capture.name.ends_with(".adoption");
}

uint32_t left_by(const PassReport& pass) {
  uint32_t left = 0;
  for (const auto& [reason, nodes] : pass.reasons) left += nodes;
  return left;
}

std::string lines_of(const PassReport& pass) {
  std::string lines =
      fmt::format("  {:<8}{:>5} made {:>5} left\n", pass.name, pass.fired, left_by(pass));
  for (const auto& [reason, nodes] : pass.reasons)
    lines += fmt::format("{:>23} {}\n", nodes, reason);
  return lines;
}

void add(PassReport& sum, const PassReport& pass) {
  sum.name = pass.name;
  sum.fired += pass.fired;
  for (const auto& [reason, nodes] : pass.reasons) sum.reasons[reason] += nodes;
}

std::string table() {
  std::string text = kHeader;
  std::map<std::string, std::map<std::string, PassReport>> sums;
  for (const Rewritten& one : all()) {
    text += fmt::format("\n{}: {} nodes become {}\n", one.capture.name,
                        one.capture.graph.nodes.size(), one.rewriting.graph.nodes.size());
    for (const PassReport& pass : one.rewriting.passes) {
      if (pass.fired > 0 || !pass.reasons.empty()) text += lines_of(pass);
      if (only_adopts(one)) continue;
      add(sums[is_decode(one) ? "all, decode" : "all, prefill"][pass.name], pass);
    }
  }
  for (const auto& [part, passes] : sums) {
    text += "\n" + part + "\n";
    for (const auto& [name, pass] : passes) text += lines_of(pass);
  }
  return text;
}

TEST(captures, passes_make_of_them_what_the_table_says) {
  const std::filesystem::path path = captures_folder() / "passes.txt";
  if (std::getenv("DJINN_WRITE_PASSES") != nullptr) write_content(path, table());
  EXPECT_EQ(content_of(path), table());
}

TEST(captures, no_product_with_a_constant_matrix_is_left) {
  constexpr std::array<std::string_view, 4> kProducts{"aten::addmm", "aten::linear", "aten::matmul",
                                                      "aten::mm"};
  size_t made = 0, models = 0;
  for (const Rewritten& one : all()) {
    models += is_decode(one) ? 1 : 0;
    const Draft draft(one.rewriting.graph);
    const ConstantMatrices matrices(draft);
    for (const Node& node : one.rewriting.graph.nodes) {
      made += node.op == "djinn::linear_rows" || node.op == "djinn::linears" ? 1 : 0;
      if (std::ranges::find(kProducts, node.op) == kProducts.end()) continue;
      const auto weight = value_at(node, node.op == "aten::addmm" ? 2 : 1);
      ASSERT_TRUE(weight) << one.capture.name;
      EXPECT_FALSE(matrices.find(*weight)) << one.capture.name << ": " << node.op;
    }
  }
  EXPECT_GT(made, 10 * models);
}

// Cross attention is of an encoder's keys and values, which are an input.
bool attends_to_tokens(const Graph& graph, const Node& node) {
  if (node.op != "djinn::attend" && node.op != "djinn::attend_biased") return false;
  const StorageIndex storage = graph.values[*value_at(node, 1)].storage;
  return storage == kLocalStorage || graph.storages[storage].kind != StorageKind::kInput;
}

// Layers are told by the keys and values that they append. The others weigh tokens beside sinks.
TEST(captures, nine_of_ten_layers_attend_to_tokens_by_our_kernel) {
  size_t appends = 0, attends = 0;
  for (const Rewritten& one : all()) {
    if (!is_decode(one)) continue;
    for (const Node& node : one.rewriting.graph.nodes) {
      appends += node.op == "djinn::kv_append" ? 1 : 0;
      attends += attends_to_tokens(one.rewriting.graph, node) ? 1 : 0;
    }
  }
  EXPECT_GE(attends * 10, 9 * appends / 2) << attends << " of " << appends / 2;
}

size_t count_of(const Graph& graph, std::span<const std::string_view> ops) {
  return static_cast<size_t>(std::ranges::count_if(
      graph.nodes, [&](const Node& node) { return std::ranges::find(ops, node.op) != ops.end(); }));
}

// Each is known by an operator that nothing else in these models has.
TEST(captures, nine_of_ten_norms_are_ours) {
  constexpr std::array<std::string_view, 2> kNorms{"aten::rsqrt", "aten::layer_norm"};
  size_t all_norms = 0, left = 0;
  for (const Rewritten& one : all()) {
    if (!is_decode(one)) continue;
    all_norms += count_of(one.capture.graph, kNorms);
    left += count_of(one.rewriting.graph, kNorms);
  }
  EXPECT_GT(all_norms, 1000U);
  EXPECT_LE(left * 10, all_norms) << left << " of " << all_norms << " are left";
}

// The half that is negated goes into what joins it with the other one.
size_t rotations_of(const Graph& graph) {
  std::set<ValueId> negated;
  size_t joined = 0;
  for (const Node& node : graph.nodes) {
    if (node.op == "aten::neg") negated.insert(node.outputs.begin(), node.outputs.end());
    if (node.op != "aten::cat" && node.op != "aten::stack") continue;
    const auto* const list = std::get_if<ValueList>(argument_at(node, 0));
    if (list == nullptr) continue;
    joined +=
        std::ranges::any_of(list->ids, [&](const auto& id) { return id && negated.contains(*id); });
  }
  return joined;
}

// Those of models that negate nothing, which is one of queries and one of keys a layer: as many as
// there are appends.
size_t rotations_in_other_forms(const Graph& graph) {
  constexpr std::array<std::string_view, 2> kAngles{"aten::cos", "aten::polar"};
  constexpr std::array<std::string_view, 1> kAppends{"djinn::kv_append"};
  const bool is_turned = count_of(graph, kAngles) > 0;
  return is_turned && rotations_of(graph) == 0 ? count_of(graph, kAppends) : 0;
}

TEST(captures, nine_of_ten_rotations_are_ours) {
  constexpr std::array<std::string_view, 1> kRopes{"djinn::rope"};
  size_t all_rotations = 0, made = 0;
  for (const Rewritten& one : all()) {
    if (!is_decode(one)) continue;
    const Graph& graph = one.capture.graph;
    all_rotations += rotations_of(graph) + rotations_in_other_forms(graph);
    made += count_of(one.rewriting.graph, kRopes);
  }
  EXPECT_GE(made * 10, all_rotations * 9) << made << " of " << all_rotations;
}

// For want of an operator that is theirs alone, by what the passes themselves count.
TEST(captures, nine_of_ten_gates_and_casts_are_ours) {
  std::map<std::string, PassReport> sums;
  for (const Rewritten& one : all()) {
    if (!is_decode(one)) continue;
    for (const PassReport& pass : one.rewriting.passes) add(sums[pass.name], pass);
  }
  for (const char* const name : {"gated", "casts"}) {
    const PassReport& pass = sums[name];
    EXPECT_GT(pass.fired, 100U) << name;
    EXPECT_GE(pass.fired, 9 * left_by(pass)) << name << ": " << lines_of(pass);
  }
}

}  // namespace
}  // namespace djinn::srg
