// SPDX-License-Identifier: Apache-2.0

// What the annotator says of graphs that were captured, and of what fast numerics make of them,
// against labels. These were made by rules for each architecture, from names of weights, which the
// annotator does not see, and corrected by reading: tests/data/labels/README.md. A fused node is
// labelled as what makes the same value in the graph that it comes from.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/sched/annotate.h"
#include "kernel/sched/cost.h"
#include "kernel/srg/captures_for_tests.h"
#include "kernel/srg/names.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::sched {
namespace {

using srg::Annotation;
using srg::Graph;
using srg::Node;

struct Range {
  std::string what;
  srg::ValueId first = 0;
  srg::ValueId last = UINT32_MAX;
  [[nodiscard]] bool has(srg::ValueId id) const { return first <= id && id <= last; }
};

struct Labels {
  std::string name;
  std::vector<Range> roles, phases, modalities;
  std::vector<Range> gradients;    // what they say is "gradient"
  std::vector<Range> residencies;  // of nodes that no rule below is right of
  std::vector<Range> criticality;  // "critical" or "slack"
  std::vector<Range> if_fast;      // likewise, where fused nodes make it otherwise
  std::vector<Range> rates;        // bytes a run, in digits
};

Range range_of(std::string what, const std::string& text) {
  Range range{std::move(what), 0, UINT32_MAX};
  if (text.empty()) return range;
  const size_t dash = text.find('-');
  range.first = static_cast<srg::ValueId>(std::stoul(text));
  range.last = dash == std::string::npos
                   ? range.first
                   : static_cast<srg::ValueId>(std::stoul(text.substr(dash + 1)));
  return range;
}

// The words of a line, and of no more than three.
std::array<std::string, 3> words_of(std::string_view line) {
  std::array<std::string, 3> words;
  for (std::string& word : words) {
    word = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(line.size(), word.size() + 1));
  }
  return words;
}

Labels read_labels(const std::filesystem::path& path) {
  Labels labels;
  labels.name = path.stem();
  const std::string text = srg::content_of(path);
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const auto [first, second, third] = words_of(line);
    if (first == "#") continue;
    if (first == "phase") {
      labels.phases.push_back(range_of(second, third));
    } else if (first == "modality") {
      labels.modalities.push_back(range_of(second, third));
    } else if (first == "rate") {
      labels.rates.push_back(range_of(second, third));
    } else if (first == "residency") {
      labels.residencies.push_back(range_of(second, third));
    } else if (first == "gradient") {
      labels.gradients.push_back(range_of(first, second));
    } else if (first == "critical" || first == "slack") {
      labels.criticality.push_back(range_of(first, second));
    } else if (first == "fast") {
      labels.if_fast.push_back(range_of(second, third));
    } else {
      labels.roles.push_back(range_of(first, second));
    }
  }
  return labels;
}

std::vector<Labels> all_labels() {
  std::vector<Labels> all;
  for (const auto& entry :
       std::filesystem::directory_iterator(srg::captures_folder() / "../labels")) {
    if (entry.path().extension() == ".txt") all.push_back(read_labels(entry.path()));
  }
  return all;
}

enum class Form { kAsCaptured, kFast };

// Without what its client said of it: ghosts say where they train.
Graph graph_of(const Labels& labels, Form form = Form::kAsCaptured) {
  for (const char* folder : {"../captures", "../forwards"}) {
    const auto path = srg::captures_folder() / folder / (labels.name + ".srg");
    if (!std::filesystem::exists(path)) continue;
    auto graph = srg::parse_text(srg::content_of(path));
    EXPECT_TRUE(graph.ok()) << labels.name;
    if (!graph) continue;
    for (Node& node : graph->nodes) node.annotation = {};
    if (form == Form::kFast) return srg::rewrite(*std::move(graph)).graph;
    return *std::move(graph);
  }
  ADD_FAILURE() << "no graph " << labels.name;
  return {};
}

// The last range that has the node, so that parts stand behind the whole.
std::string label_of(const std::vector<Range>& ranges, srg::ValueId id) {
  std::string what;
  for (const Range& range : ranges) {
    if (range.has(id)) what = range.what;
  }
  return what;
}

bool is_view(const Node& node) {
  return node.op == "aten::as_strided" || node.op == "aten::view.dtype";
}

// The outputs, and what an output is a view of.
std::vector<bool> what_leaves(const Graph& graph) {
  std::vector<bool> leaves(graph.values.size());
  for (const srg::ValueId id : graph.outputs) leaves[id] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (!is_view(node) || !leaves[node.outputs.at(0)]) continue;
    leaves[std::get<srg::ValueRef>(node.arguments.at(0).value).id] = true;
  }
  return leaves;
}

// A copy into a view of an input, which somebody will look at after the run.
bool is_into_input(const Graph& graph, const Node& node) {
  if (node.op != "aten::copy_") return false;
  const srg::Value& into = graph.values[std::get<srg::ValueRef>(node.arguments.at(0).value).id];
  return into.storage != srg::kLocalStorage &&
         graph.storages[into.storage].kind == srg::StorageKind::kInput;
}

srg::Residency residency_of(const Labels& labels, const Graph& graph,
                            const std::vector<bool>& leaves, const Node& node) {
  if (const std::string label = label_of(labels.residencies, node.outputs.at(0)); !label.empty()) {
    const auto residency = srg::from_name<srg::Residency>(label);
    EXPECT_TRUE(residency) << labels.name << ": " << label;
    return residency.value_or(srg::Residency::kUnknown);
  }
  if (node.op == "djinn::kv_append" || is_into_input(graph, node)) return srg::Residency::kState;
  if (!label_of(labels.gradients, node.outputs.at(0)).empty()) return srg::Residency::kGradient;
  const bool output =
      std::ranges::any_of(node.outputs, [&](srg::ValueId id) { return leaves[id]; });
  return output ? srg::Residency::kOutput : srg::Residency::kActivation;
}

struct Score {
  size_t nodes = 0;  // without views
  size_t fused = 0;  // of these
  size_t views = 0;
  size_t right = 0;  // of the nodes
  std::string wrong;

  void add(const Score& other) {
    nodes += other.nodes;
    fused += other.fused;
    views += other.views;
    right += other.right;
    wrong += other.wrong;
  }

  void count(const Labels& labels, const Graph& graph, const std::vector<bool>& leaves,
             const Node& node) {
    const srg::ValueId id = node.outputs.at(0);
    const Annotation& note = node.annotation;
    const std::string role = is_view(node) ? "view" : label_of(labels.roles, id);
    const bool same = (note.role == role || labels.roles.empty()) &&
                      srg::name_of(note.phase) == label_of(labels.phases, id) &&
                      srg::name_of(note.modality) == label_of(labels.modalities, id) &&
                      note.residency == residency_of(labels, graph, leaves, node);
    ++(is_view(node) ? views : nodes);
    fused += node.op.starts_with("djinn::") && node.op != "djinn::kv_append" ? 1 : 0;
    if (!is_view(node)) right += same ? 1 : 0;
    if (same) return;
    wrong += fmt::format("{} %{} {}: {} {} {}, and not {} {} {}\n", labels.name, id, node.op,
                         note.role, srg::name_of(note.phase), srg::name_of(note.modality), role,
                         label_of(labels.phases, id), label_of(labels.modalities, id));
  }
};

class LabelsOfForms : public ::testing::TestWithParam<Form> {};

TEST_P(LabelsOfForms, once_ninety_nine_of_a_hundred_nodes_are_as_labelled) {
  Score score;
  const std::vector<Labels> all = all_labels();
  EXPECT_GE(all.size(), 24u);
  for (const Labels& labels : all) {
    Graph graph = graph_of(labels, GetParam());
    annotate(graph);
    const std::vector<bool> leaves = what_leaves(graph);
    Score one;
    for (const Node& node : graph.nodes) one.count(labels, graph, leaves, node);
    // So that what is wrong of a whole family does not drown in what is right of the others.
    EXPECT_GE(one.right * 100, one.nodes * 95) << one.wrong;
    score.add(one);
  }
  EXPECT_GT(score.nodes, GetParam() == Form::kFast ? 2500u : 5000u);
  EXPECT_GE(score.fused, GetParam() == Form::kFast ? 1000u : 0u);
  EXPECT_GE(score.right * 100, score.nodes * 99) << score.wrong;
  RecordProperty("right",
                 fmt::format("{} of {}, and {} views", score.right, score.nodes, score.views));
}

// Of all of the captures and forward passes, not only of those with labels.
TEST(Labels, once_every_phase_but_unknown_is_of_some_node_and_unknown_of_none) {
  std::set<srg::Phase> labelled;
  for (const Labels& labels : all_labels()) {
    for (const Range& range : labels.phases) {
      const auto phase = srg::from_name<srg::Phase>(range.what);
      ASSERT_TRUE(phase) << labels.name << ": " << range.what;
      labelled.insert(*phase);
    }
    Graph graph = graph_of(labels);
    annotate(graph);
    for (const Node& node : graph.nodes) {
      EXPECT_NE(node.annotation.phase, srg::Phase::kUnknown) << labels.name << ": " << node.op;
    }
  }
  const std::set<srg::Phase> all = {srg::Phase::kForward,         srg::Phase::kPrefill,
                                    srg::Phase::kDecode,          srg::Phase::kTraining,
                                    srg::Phase::kVisionEncoding,  srg::Phase::kVisionDecoding,
                                    srg::Phase::kMultimodalFusion};
  EXPECT_EQ(labelled, all);
}

// Of a value: all of the longest path, or less where another one is longer.
TEST_P(LabelsOfForms, once_what_waits_for_something_else_is_less_critical_than_what_is_waited_for) {
  size_t values = 0, right = 0;
  std::string wrong;
  for (const Labels& labels : all_labels()) {
    Graph graph = graph_of(labels, GetParam());
    annotate(graph);
    for (const Node& node : graph.nodes) {
      const srg::ValueId id = node.outputs.at(0);
      std::string label = label_of(labels.criticality, id);
      const std::string if_fast = label_of(labels.if_fast, id);
      if (GetParam() == Form::kFast && !if_fast.empty()) label = if_fast;
      // Memory that is made to be written has no edge to wait for.
      if (label.empty() || is_view(node) || node.op == "aten::zeros") continue;
      const int criticality = graph.values[id].criticality;
      const bool same = (label == "critical") == (criticality == 255);
      ++values;
      right += same ? 1 : 0;
      if (!same)
        wrong += fmt::format("{} %{}: {}, and not {}\n", labels.name, id, criticality, label);
    }
  }
  EXPECT_GT(values, GetParam() == Form::kFast ? 100u : 300u);
  EXPECT_GE(right * 100, values * 99) << wrong;
}

TEST_P(LabelsOfForms, once_the_rate_of_an_edge_is_its_bytes_a_run) {
  size_t values = 0, right = 0;
  std::string wrong;
  for (const Labels& labels : all_labels()) {
    const Graph graph = graph_of(labels, GetParam());
    const auto shapes = shapes_at(graph, upper_symbols(graph));
    for (const Node& node : graph.nodes) {
      const srg::ValueId id = node.outputs.at(0);
      const std::string label = label_of(labels.rates, id);
      if (label.empty() || is_view(node)) continue;
      const std::string rate = shapes[id] ? fmt::format("{}", byte_count(*shapes[id])) : "unknown";
      ++values;
      right += rate == label ? 1 : 0;
      if (rate != label)
        wrong += fmt::format("{} %{}: {}, and not {}\n", labels.name, id, rate, label);
    }
  }
  EXPECT_GT(values, GetParam() == Form::kFast ? 100u : 200u);
  EXPECT_GE(right * 100, values * 99) << wrong;
}

INSTANTIATE_TEST_SUITE_P(Forms, LabelsOfForms, ::testing::Values(Form::kAsCaptured, Form::kFast),
                         [](const auto& form) {
                           return form.param == Form::kFast ? "Fast" : "AsCaptured";
                         });

TEST(Labels, every_node_of_every_capture_has_a_cost) {
  for (const srg::Capture& capture : srg::read_captures()) {
    std::vector<int64_t> symbols;
    for (const srg::Symbol& symbol : capture.graph.symbols) {
      symbols.push_back(std::clamp<int64_t>(16, symbol.min, symbol.max));
    }
    const GraphCost cost = cost_at(capture.graph, symbols);
    EXPECT_EQ(cost.unknown, 0u) << capture.name;
    // What only hands a prompt's results over moves bytes.
    const bool computes = std::ranges::any_of(capture.graph.storages, [](const auto& storage) {
      return storage.kind == srg::StorageKind::kWeight;
    });
    EXPECT_EQ(cost.total.flops > 0, computes) << capture.name;
    EXPECT_GT(cost.total.bytes(), 0u) << capture.name;
  }
}

TEST(Labels, once_no_role_is_told_from_a_name) {
  for (const Labels& labels : all_labels()) {
    Graph graph = graph_of(labels);
    Graph nameless = graph;
    for (srg::Storage& storage : nameless.storages) storage.name.clear();
    for (srg::Value& value : nameless.values) value.name.clear();
    annotate(graph);
    annotate(nameless);
    EXPECT_EQ(graph.nodes, nameless.nodes) << labels.name;
  }
}

}  // namespace
}  // namespace djinn::sched
