// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/annotate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "kernel/sched/operators.h"
#include "kernel/srg/operands.h"

namespace djinn::sched {
namespace {

using srg::Annotation;
using srg::Argument;
using srg::for_each_operand;
using srg::Graph;
using srg::InputRole;
using srg::kLocalStorage;
using srg::Modality;
using srg::Node;
using srg::Phase;
using srg::Residency;
using srg::Storage;
using srg::StorageKind;
using srg::Symbol;
using srg::SymbolRole;
using srg::Value;
using srg::ValueId;
using srg::ValueRef;

using NodeIndex = uint32_t;
constexpr NodeIndex kNoNode = UINT32_MAX;

bool is_backward(const Node& node) {
  return base_name(node.op).ends_with("_backward");
}

// Holds the node that makes each value, and the nodes that use it. A node that uses a value twice
// is listed once.
struct Dataflow {
  std::vector<NodeIndex> maker;
  std::vector<std::vector<NodeIndex>> users;

  explicit Dataflow(const Graph& graph)
      : maker(graph.values.size(), kNoNode), users(graph.values.size()) {
    for (NodeIndex i = 0; i < graph.nodes.size(); ++i) {
      for (const ValueId id : graph.nodes[i].outputs) maker[id] = i;
      for_each_operand(graph.nodes[i], [&](ValueId id) {
        if (users[id].empty() || users[id].back() != i) users[id].push_back(i);
      });
    }
  }
};

// Derives roles by pattern. A role once given, by the client or an earlier pattern, stays; patterns
// run from the surest to the vaguest.
class RoleFinder {
 public:
  explicit RoleFinder(Graph& graph) : graph_(graph), flow_(graph) {
    for (const Node& node : graph.nodes) families_.push_back(family_of(node.op));
  }

  void run() {
    name_by_operator();
    name_composed_attention();
    name_lm_head();
    name_attention_inputs();
    name_attention_outputs();
    name_mlps();
    name_composed_norms();
  }

 private:
  static std::string_view role_of_family(Family family) {
    switch (family) {
      case Family::kAttention:
        return "attention";
      case Family::kAppend:
        return "kv_append";
      case Family::kEmbedding:
        return "embedding";
      case Family::kConvolution:
        return "convolution";
      case Family::kNorm:
        return "norm";
      case Family::kRope:
        return "rope";
      default:
        return "";
    }
  }

  void give(NodeIndex node, std::string_view role) {
    std::string& present = graph_.nodes[node].annotation.role;
    if (present.empty()) present = role;
  }

  void name_by_operator() {
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) give(i, role_of_family(families_[i]));
  }

  // Gives the node that makes argument i of node; kNoNode if the argument is no value, or a view of
  // a storage.
  [[nodiscard]] NodeIndex maker_of_argument(NodeIndex node, size_t i) const {
    const auto& arguments = graph_.nodes[node].arguments;
    if (i >= arguments.size()) return kNoNode;
    const auto* ref = std::get_if<ValueRef>(&arguments[i].value);
    return ref == nullptr ? kNoNode : flow_.maker[ref->id];
  }

  template <typename Visit>
  void for_each_user(NodeIndex node, Visit visit) const {
    for (const ValueId id : graph_.nodes[node].outputs) {
      for (const NodeIndex user : flow_.users[id]) visit(user);
    }
  }

  [[nodiscard]] bool is_linear(NodeIndex node) const { return families_[node] == Family::kLinear; }

  // Names attention that was not written as one operator: matmul, scale and mask, softmax, matmul.
  void name_composed_attention() {
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      if (families_[i] != Family::kSoftmax) continue;
      NodeIndex scores = maker_of_argument(i, 0);
      // Scale, mask and cast are the steps seen between the two.
      for (int steps = 0; steps < 4 && scores != kNoNode && is_score_step(scores); ++steps) {
        scores = maker_of_argument(scores, 0);
      }
      if (scores == kNoNode || families_[scores] != Family::kMatmul) continue;
      name_around_softmax(i, scores);
    }
  }

  [[nodiscard]] bool is_score_step(NodeIndex node) const {
    return families_[node] == Family::kUnary || families_[node] == Family::kBinary;
  }

  void name_around_softmax(NodeIndex softmax, NodeIndex scores) {
    for (NodeIndex at = softmax; at != scores; at = maker_of_argument(at, 0)) give(at, "attention");
    give(scores, "attention");
    for_each_user(softmax, [&](NodeIndex user) {
      if (families_[user] == Family::kMatmul) give(user, "attention");
    });
  }

  // A linear is the head if it gives an output of the graph and has as many rows as a table of
  // embeddings.
  void name_lm_head() {
    const auto vocabularies = embedding_rows();
    for (const ValueId id : graph_.outputs) {
      const NodeIndex node = flow_.maker[id];
      if (node == kNoNode || !is_linear(node)) continue;
      const auto rows = rows_of_argument(node, 1);
      if (rows && vocabularies.contains(*rows)) give(node, "lm_head");
    }
  }

  [[nodiscard]] std::unordered_set<int64_t> embedding_rows() const {
    std::unordered_set<int64_t> rows;
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      if (families_[i] != Family::kEmbedding) continue;
      if (const auto count = rows_of_argument(i, 0)) rows.insert(*count);
    }
    return rows;
  }

  // Gives the first size of argument i, if it is a number.
  [[nodiscard]] std::optional<int64_t> rows_of_argument(NodeIndex node, size_t i) const {
    const auto& arguments = graph_.nodes[node].arguments;
    const auto* ref = i < arguments.size() ? std::get_if<ValueRef>(&arguments[i].value) : nullptr;
    if (ref == nullptr) return std::nullopt;
    const auto& sizes = graph_.values[ref->id].sizes;
    if (sizes.empty() || !sizes[0].is_constant()) return std::nullopt;
    return sizes[0].constant;
  }

  // Names every linear whose result reaches attention or the cache without another linear in
  // between.
  void name_attention_inputs() {
    std::vector<bool> seen(graph_.nodes.size());
    for (auto i = static_cast<NodeIndex>(graph_.nodes.size()); i-- > 0;) {
      const bool source = families_[i] == Family::kAppend || is_scores(i);
      if (!source && !(seen[i] && carries_heads(i))) continue;
      for_each_operand(graph_.nodes[i], [&](ValueId id) {
        const NodeIndex maker = flow_.maker[id];
        if (maker == kNoNode) return;
        seen[maker] = true;
        if (is_linear(maker)) give(maker, "attention");
      });
    }
  }

  [[nodiscard]] bool is_scores(NodeIndex node) const {
    return families_[node] == Family::kAttention ||
           (families_[node] == Family::kMatmul &&
            graph_.nodes[node].annotation.role == "attention");
  }

  // Tells whether the node may stand between a projection and attention: it reshapes, is a part of
  // rotary embedding, or norms heads.
  [[nodiscard]] bool carries_heads(NodeIndex node) const {
    switch (families_[node]) {
      case Family::kView:
      case Family::kRope:
      case Family::kUnary:
      case Family::kBinary:
        return true;
      default:
        return false;
    }
  }

  // Names the linear that follows attention with nothing but views in between.
  void name_attention_outputs() {
    std::vector<bool> carried(graph_.nodes.size());
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      const bool moves = families_[i] == Family::kView || families_[i] == Family::kUnary;
      if (!is_scores(i) && !(carried[i] && moves)) continue;
      for_each_user(i, [&](NodeIndex user) {
        carried[user] = true;
        if (is_linear(user)) give(user, "attention");
      });
    }
  }

  // Names linear, activation, linear; or gate and up, their product, linear.
  void name_mlps() {
    gated_.assign(graph_.nodes.size(), false);
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      if (families_[i] != Family::kActivation) continue;
      const NodeIndex first = maker_of_argument(i, 0);
      if (first == kNoNode || !is_linear(first)) continue;
      give(first, "mlp");
      give(i, "mlp");
      for_each_user(i, [&](NodeIndex user) { name_behind_activation(user); });
    }
  }

  void name_behind_activation(NodeIndex user) {
    if (is_linear(user)) give(user, "mlp");
    if (families_[user] != Family::kBinary || gated_[user]) return;
    gated_[user] = true;  // a product of many activations is walked once
    give(user, "mlp");
    for (size_t i = 0; i < 2; ++i) {
      const NodeIndex factor = maker_of_argument(user, i);
      if (factor != kNoNode && is_linear(factor)) give(factor, "mlp");
    }
    for_each_user(user, [&](NodeIndex next) {
      if (is_linear(next)) give(next, "mlp");
    });
  }

  // Names a root mean square norm that was not written as one operator: pow, mean, add, rsqrt, mul.
  void name_composed_norms() {
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      if (base_name(graph_.nodes[i].op) != "aten::rsqrt") continue;
      const NodeIndex sum = maker_of_argument(i, 0);
      const NodeIndex mean = sum == kNoNode ? kNoNode : maker_of_argument(sum, 0);
      if (mean == kNoNode || base_name(graph_.nodes[mean].op) != "aten::mean") continue;
      const NodeIndex square = maker_of_argument(mean, 0);
      for (const NodeIndex node : {i, sum, mean}) give(node, "norm");
      if (square != kNoNode && base_name(graph_.nodes[square].op) == "aten::pow") {
        give(square, "norm");
      }
      for_each_user(i, [&](NodeIndex user) {
        if (families_[user] == Family::kBinary) give(user, "norm");
      });
    }
  }

  Graph& graph_;
  Dataflow flow_;
  std::vector<Family> families_;
  std::vector<bool> gated_;
};

// --- phase

const Symbol* symbol_of(const Graph& graph, SymbolRole role) {
  for (const Symbol& symbol : graph.symbols) {
    if (symbol.role == role) return &symbol;
  }
  return nullptr;
}

bool has_sequence(const Graph& graph) {
  return std::any_of(graph.storages.begin(), graph.storages.end(),
                     [](const Storage& storage) { return storage.kind == StorageKind::kSequence; });
}

// A graph that takes one token a row, without a symbol for the count, is a decode step, too.
Phase phase_of(const Graph& graph) {
  if (std::any_of(graph.nodes.begin(), graph.nodes.end(), is_backward)) return Phase::kTraining;
  if (!has_sequence(graph)) return Phase::kForward;
  const Symbol* tokens = symbol_of(graph, SymbolRole::kTokens);
  return tokens == nullptr || tokens->max <= 1 ? Phase::kDecode : Phase::kPrefill;
}

void name_phases(Graph& graph) {
  const Phase phase = phase_of(graph);
  for (Node& node : graph.nodes) {
    if (node.annotation.phase == Phase::kUnknown) node.annotation.phase = phase;
  }
}

// --- residency

void name_residency(Graph& graph) {
  std::vector<bool> leaves(graph.values.size());
  for (const ValueId id : graph.outputs) leaves[id] = true;
  for (Node& node : graph.nodes) {
    Residency& residency = node.annotation.residency;
    if (residency != Residency::kUnknown) continue;
    const bool output = std::any_of(node.outputs.begin(), node.outputs.end(),
                                    [&](ValueId id) { return leaves[id]; });
    residency = output ? Residency::kOutput : Residency::kActivation;
    if (is_backward(node)) residency = Residency::kGradient;
    if (family_of(node.op) == Family::kAppend) residency = Residency::kState;
  }
}

// --- modality: flows from its sources along the values; no more than kUnknown is known of weights.

Modality meet(Modality a, Modality b) {
  if (a == Modality::kUnknown || a == b) return b;
  return b == Modality::kUnknown ? a : Modality::kFusion;
}

Modality source_modality(const Node& node) {
  const std::string_view name = base_name(node.op);
  if (name == "aten::embedding") return Modality::kText;
  if (name == "aten::conv2d" || name == "aten::conv3d") return Modality::kVision;
  if (name == "aten::conv1d" || name == "aten::stft") return Modality::kAudio;
  return Modality::kUnknown;
}

Modality input_modality(const Graph& graph, const Value& value) {
  if (value.storage == kLocalStorage) return Modality::kUnknown;
  const Storage& storage = graph.storages[value.storage];
  const bool ids = storage.kind == StorageKind::kInput && storage.role == InputRole::kTokenIds;
  return ids ? Modality::kText : Modality::kUnknown;
}

void name_modalities(Graph& graph) {
  std::vector<Modality> flows;
  for (const Value& value : graph.values) flows.push_back(input_modality(graph, value));
  Modality all = Modality::kUnknown;
  for (Node& node : graph.nodes) {
    Modality& modality = node.annotation.modality;
    if (modality == Modality::kUnknown) {
      for_each_operand(node, [&](ValueId id) { modality = meet(modality, flows[id]); });
      // A second embedding or convolution keeps what reaches it: positions are embedded too.
      if (modality == Modality::kUnknown) modality = source_modality(node);
    }
    for (const ValueId id : node.outputs) flows[id] = modality;
    all = meet(all, modality);
  }
  // Nodes without data of their own, such as tables of rotary angles, belong to the only modality.
  if (all == Modality::kFusion) return;
  for (Node& node : graph.nodes) {
    if (node.annotation.modality == Modality::kUnknown) node.annotation.modality = all;
  }
}

// --- cost

void estimate_costs(Graph& graph) {
  const auto shapes = upper_shapes(graph);
  for (Node& node : graph.nodes) {
    if (node.annotation.flops != 0 || node.annotation.bytes != 0) continue;
    const Cost cost = cost_of(node, shapes).value_or(Cost{});
    node.annotation.flops = cost.flops;
    node.annotation.bytes = cost.bytes;
  }
}

template <typename Test>
bool any_node(const Graph& graph, Test test) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&](const Node& node) { return test(node.annotation); });
}

}  // namespace

std::string_view name_of(Workload workload) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "unknown", "text_encoder", "prefill", "decode", "vision", "audio", "multimodal", "training"};
  const auto number = static_cast<size_t>(workload);
  return number < kNames.size() ? kNames[number] : kNames[0];
}

void annotate(Graph& graph) {
  RoleFinder(graph).run();
  name_phases(graph);
  name_residency(graph);
  name_modalities(graph);
  estimate_costs(graph);
}

Workload classify(const Graph& graph) {
  const auto has_phase = [&](Phase phase) {
    return any_node(graph, [&](const Annotation& note) { return note.phase == phase; });
  };
  const auto has_modality = [&](Modality modality) {
    return any_node(graph, [&](const Annotation& note) { return note.modality == modality; });
  };
  const bool text = has_modality(Modality::kText);
  const bool vision = has_modality(Modality::kVision);
  const bool audio = has_modality(Modality::kAudio);
  if (has_phase(Phase::kTraining)) return Workload::kTraining;
  if (has_phase(Phase::kPrefill)) return Workload::kPrefill;
  if (has_phase(Phase::kDecode)) return Workload::kDecode;
  if (has_modality(Modality::kFusion) || text + vision + audio > 1) return Workload::kMultimodal;
  if (vision) return Workload::kVision;
  if (audio) return Workload::kAudio;
  return text ? Workload::kTextEncoder : Workload::kUnknown;
}

Cost total_cost(const Graph& graph) {
  Cost total;
  for (const Node& node : graph.nodes) {
    total = total + Cost{node.annotation.flops, node.annotation.bytes};
  }
  return total;
}

}  // namespace djinn::sched
