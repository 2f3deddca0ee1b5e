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

std::vector<Rewritten> rewritings(const std::filesystem::path& folder) {
  std::vector<Rewritten> list;
  for (Capture& one : read_captures(folder)) {
    Rewriting rewriting = rewrite(one.graph);
    list.push_back({std::move(one), std::move(rewriting)});
  }
  return list;
}

const std::vector<Rewritten>& of_generation() {
  static const std::vector<Rewritten> made = rewritings(captures_folder());
  return made;
}

const std::vector<Rewritten>& forwards() {
  static const std::vector<Rewritten> made = rewritings(forwards_folder());
  return made;
}

bool is_decode(const Rewritten& one) {
  return one.capture.name.ends_with(".decode");
}

bool is_training(const Rewritten& one) {
  return one.capture.name.ends_with(".training");
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

std::string lines_of(const Rewritten& one) {
  std::string lines = fmt::format("\n{}: {} nodes become {}\n", one.capture.name,
                                  one.capture.graph.nodes.size(), one.rewriting.graph.nodes.size());
  for (const PassReport& pass : one.rewriting.passes) {
    if (pass.fired > 0 || !pass.reasons.empty()) lines += lines_of(pass);
  }
  return lines;
}

std::string table() {
  std::string text = kHeader;
  std::map<std::string, std::map<std::string, PassReport>> sums;
  for (const Rewritten& one : of_generation()) {
    text += lines_of(one);
    if (only_adopts(one)) continue;
    auto& part = sums[is_decode(one) ? "all, decode" : "all, prefill"];
    for (const PassReport& pass : one.rewriting.passes) add(part[pass.name], pass);
  }
  text += "\n# Whole forward passes.\n";
  for (const Rewritten& one : forwards()) {
    text += lines_of(one);
    if (is_training(one)) continue;
    for (const PassReport& pass : one.rewriting.passes) add(sums["all, forward"][pass.name], pass);
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

// Gives how many products with one were made.
size_t made_of_constant_matrices(const Rewritten& one) {
  constexpr std::array<std::string_view, 4> kProducts{"aten::addmm", "aten::linear", "aten::matmul",
                                                      "aten::mm"};
  size_t made = 0;
  const Draft draft(one.rewriting.graph);
  const ConstantMatrices matrices(draft);
  for (const Node& node : one.rewriting.graph.nodes) {
    made += node.op == "djinn::linear_rows" || node.op == "djinn::linears" ? 1 : 0;
    if (std::ranges::find(kProducts, node.op) == kProducts.end()) continue;
    const auto weight = value_at(node, node.op == "aten::addmm" ? 2 : 1);
    EXPECT_FALSE(weight && matrices.find(*weight)) << one.capture.name << ": " << node.op;
  }
  return made;
}

TEST(captures, no_product_with_a_constant_matrix_is_left) {
  size_t made = 0, models = 0;
  for (const Rewritten& one : of_generation()) {
    models += is_decode(one) ? 1 : 0;
    made += made_of_constant_matrices(one);
  }
  EXPECT_GT(made, 10 * models);
  for (const Rewritten& one : forwards()) made_of_constant_matrices(one);
}

// How much of something each model has, and how much of that is ours.
class Tally {
 public:
  void add(const Rewritten& one, size_t made, size_t all) {
    made = std::min(made, all);
    made_ += made;
    all_ += all;
    if (made * 10 < all * 9) below_ += fmt::format(" {} {} of {},", one.capture.name, made, all);
  }
  [[nodiscard]] size_t all() const { return all_; }
  void expect_nine_of_ten() const {
    EXPECT_GE(made_ * 10, all_ * 9) << made_ << " of " << all_ << "; below nine of ten:" << below_;
  }

 private:
  size_t made_ = 0, all_ = 0;
  std::string below_;
};

// Cross attention is of an encoder's keys and values, which are an input.
bool attends_to_tokens(const Graph& graph, const Node& node) {
  if (node.op != "djinn::attend" && node.op != "djinn::attend_biased") return false;
  const StorageIndex storage = graph.values[*value_at(node, 1)].storage;
  return storage == kLocalStorage || graph.storages[storage].kind != StorageKind::kInput;
}

// Layers are told by the keys and values that they append. The others weigh tokens beside sinks.
TEST(captures, nine_of_ten_layers_attend_to_tokens_by_our_kernel) {
  Tally tally;
  for (const Rewritten& one : of_generation()) {
    if (!is_decode(one)) continue;
    size_t appends = 0, attends = 0;
    for (const Node& node : one.rewriting.graph.nodes) {
      appends += node.op == "djinn::kv_append" ? 1 : 0;
      attends += attends_to_tokens(one.rewriting.graph, node) ? 1 : 0;
    }
    tally.add(one, attends, appends / 2);
  }
  tally.expect_nine_of_ten();
}

size_t count_of(const Graph& graph, std::span<const std::string_view> ops) {
  return static_cast<size_t>(std::ranges::count_if(
      graph.nodes, [&](const Node& node) { return std::ranges::find(ops, node.op) != ops.end(); }));
}

// What a capture has of these operators, and how many of them a rewriting leaves.
void add_without_those_left(Tally& tally, const Rewritten& one,
                            std::span<const std::string_view> ops) {
  const size_t all = count_of(one.capture.graph, ops);
  tally.add(one, all - std::min(all, count_of(one.rewriting.graph, ops)), all);
}

// Of each token's captures.
Tally without_those_left(std::span<const std::string_view> ops) {
  Tally tally;
  for (const Rewritten& one : of_generation()) {
    if (is_decode(one)) add_without_those_left(tally, one, ops);
  }
  return tally;
}

// Each is known by an operator that nothing else in these models has.
constexpr std::array<std::string_view, 3> kNorms{"aten::layer_norm", "aten::rms_norm",
                                                 "aten::rsqrt"};

TEST(captures, nine_of_ten_norms_are_ours) {
  const Tally tally = without_those_left(kNorms);
  EXPECT_GT(tally.all(), 1000U);
  tally.expect_nine_of_ten();
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
  Tally tally;
  for (const Rewritten& one : of_generation()) {
    if (!is_decode(one)) continue;
    const Graph& graph = one.capture.graph;
    tally.add(one, count_of(one.rewriting.graph, kRopes),
              rotations_of(graph) + rotations_in_other_forms(graph));
  }
  tally.expect_nine_of_ten();
}

// PyTorch's activations, and what gelu by tanh is composed around.
constexpr std::array<std::string_view, 3> kActivations{"aten::gelu", "aten::silu", "aten::tanh"};

TEST(captures, nine_of_ten_gates_are_ours) {
  const Tally tally = without_those_left(kActivations);
  EXPECT_GT(tally.all(), 100U);
  tally.expect_nine_of_ten();
}

// Whatever else is copied counts, too.
TEST(captures, nine_of_ten_copies_are_casts) {
  constexpr std::array<std::string_view, 1> kCopies{"aten::copy_"};
  const Tally tally = without_those_left(kCopies);
  EXPECT_GT(tally.all(), 1000U);
  tally.expect_nine_of_ten();
}

// Products with a weight whose value other such products have, too.
size_t products_of_shared_values(const Graph& graph) {
  std::map<ValueId, size_t> products;
  for (const Node& node : graph.nodes) {
    if (node.op != "aten::linear") continue;
    const StorageIndex storage = graph.values[*value_at(node, 1)].storage;
    const bool has_weight =
        storage != kLocalStorage && graph.storages[storage].kind == StorageKind::kWeight;
    if (has_weight) ++products[*value_at(node, 0)];
  }
  size_t shared = 0;
  for (const auto& [value, count] : products) shared += count > 1 ? count : 0;
  return shared;
}

size_t products_together(const Graph& graph) {
  size_t products = 0;
  for (const Node& node : graph.nodes) {
    products += node.op == "djinn::linears" ? node.outputs.size() : 0;
  }
  return products;
}

TEST(captures, nine_of_ten_products_of_one_value_are_computed_together) {
  Tally tally;
  for (const Rewritten& one : of_generation()) {
    if (!is_decode(one)) continue;
    tally.add(one, products_together(one.rewriting.graph),
              products_of_shared_values(one.capture.graph));
  }
  EXPECT_GT(tally.all(), 1000U);
  tally.expect_nine_of_ten();
}

TEST(captures, nine_of_ten_norms_gates_and_shared_products_of_encoders_are_ours) {
  Tally norms, gates, products;
  for (const Rewritten& one : forwards()) {
    if (is_training(one)) continue;
    add_without_those_left(norms, one, kNorms);
    add_without_those_left(gates, one, kActivations);
    products.add(one, products_together(one.rewriting.graph),
                 products_of_shared_values(one.capture.graph));
  }
  for (const Tally& tally : {norms, gates, products}) tally.expect_nine_of_ten();
}

}  // namespace
}  // namespace djinn::srg
