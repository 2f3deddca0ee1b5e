// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/annotate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernel/sched/cost.h"
#include "kernel/sched/dataflow.h"
#include "kernel/sched/image_decoding.h"
#include "kernel/sched/operators.h"
#include "kernel/sched/roles.h"

namespace djinn::sched {
namespace {

using srg::Annotation;
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
using Shapes = std::span<const std::optional<Shape>>;

// --- phase

const Symbol* symbol_of(const Graph& graph, SymbolRole role) {
  for (const Symbol& symbol : graph.symbols) {
    if (symbol.role == role) return &symbol;
  }
  return nullptr;
}

// Whether tokens follow others. Layers that keep a state instead of keys and values have no
// sequence.
bool generates(const Graph& graph) {
  return symbol_of(graph, SymbolRole::kPast) != nullptr ||
         std::any_of(graph.storages.begin(), graph.storages.end(),
                     [](const Storage& storage) { return storage.kind == StorageKind::kSequence; });
}

// A graph that takes one token a row, without a symbol for the count, is a decode step, too.
Phase phase_of(const Graph& graph) {
  const bool trains = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                  [](const Node& node) { return is_backward(node.op); });
  if (trains) return Phase::kTraining;
  if (!generates(graph)) return Phase::kForward;
  const Symbol* tokens = symbol_of(graph, SymbolRole::kTokens);
  return tokens == nullptr || tokens->max <= 1 ? Phase::kDecode : Phase::kPrefill;
}

// --- residency

// What a backward operator makes, and what is made of that; behind the first of them, and where it
// is a number to begin with, also what is made for gradients alone.
std::vector<bool> find_gradients(const Graph& graph, const Dataflow& flow) {
  const auto count = static_cast<NodeIndex>(graph.nodes.size());
  std::vector<bool> is_gradient(count);
  NodeIndex first = count;
  for (NodeIndex i = 0; i < count; ++i) {
    const auto operands = flow.operands(i);
    is_gradient[i] = is_backward(graph.nodes[i].op) ||
                     std::any_of(operands.begin(), operands.end(), [&](const auto& one) {
                       return one.producer != kNoNode && is_gradient[one.producer];
                     });
    if (is_gradient[i]) first = std::min(first, i);
  }
  if (first == count) return is_gradient;
  for (NodeIndex i = count; i-- > 0;) {
    const auto users = flow.users(i);
    if (users.empty() || (i < first && flow.family(i) != Family::kFill)) continue;
    if (std::all_of(users.begin(), users.end(), [&](NodeIndex user) { return is_gradient[user]; }))
      is_gradient[i] = true;
  }
  return is_gradient;
}

// An output is of the node that writes it last, and of a view of that.
void name_residency(Graph& graph, const Dataflow& flow) {
  const std::vector<bool> is_gradient = find_gradients(graph, flow);
  std::vector<bool> leaves(graph.nodes.size());
  std::vector<bool> is_output(graph.values.size());
  for (const ValueId id : graph.outputs) {
    is_output[id] = true;
    if (const NodeIndex node = flow.producer_at_end(id); node != kNoNode) leaves[node] = true;
  }
  for (NodeIndex i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    Residency& residency = graph.nodes[i].annotation.residency;
    if (residency != Residency::kUnknown) continue;
    const bool output = leaves[i] || std::any_of(node.outputs.begin(), node.outputs.end(),
                                                 [&](ValueId id) { return is_output[id]; });
    residency = output ? Residency::kOutput : Residency::kActivation;
    if (is_gradient[i]) residency = Residency::kGradient;
    if (flow.family(i) == Family::kAppend || flow.writes_input(graph, i)) {
      residency = Residency::kState;
    }
  }
}

// --- modality: flows from its sources along the values; no more than kUnknown is known of weights.

Modality meet(Modality a, Modality b) {
  if (a == Modality::kUnknown || a == b) return b;
  return b == Modality::kUnknown ? a : Modality::kFusion;
}

class ModalityFlow {
 public:
  ModalityFlow(Graph& graph, const Dataflow& flow, Shapes shapes)
      : graph_(graph), flow_(flow), shapes_(shapes) {}

  // Gives which nodes data of several kinds meet in.
  std::vector<bool> run() {
    std::vector<bool> meets(graph_.nodes.size());
    Modality all = Modality::kUnknown;
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      Modality& modality = graph_.nodes[i].annotation.modality;
      if (modality == Modality::kUnknown) modality = of_operands(i, meets);
      // A second embedding or convolution keeps what reaches it: positions are embedded too.
      if (modality == Modality::kUnknown) modality = of_source(i);
      all = meet(all, modality);
    }
    if (all == Modality::kFusion) {
      take_from_users();
    } else {
      fill_gaps(all);
    }
    return meets;
  }

 private:
  Modality of_operands(NodeIndex node, std::vector<bool>& meets) const {
    Modality modality = Modality::kUnknown;
    for (const Dataflow::Operand& operand : flow_.operands(node)) {
      const Modality one = operand.producer != kNoNode
                               ? graph_.nodes[operand.producer].annotation.modality
                               : of_storage(operand.storage);
      const bool differs = modality != Modality::kUnknown && one != Modality::kUnknown;
      if (differs && modality != one) meets[node] = true;
      modality = meet(modality, one);
    }
    return modality;
  }

  [[nodiscard]] Modality of_storage(srg::StorageIndex index) const {
    if (index == kLocalStorage) return Modality::kUnknown;
    const Storage& storage = graph_.storages[index];
    const bool ids = storage.kind == StorageKind::kInput && storage.role == InputRole::kTokenIds;
    return ids ? Modality::kText : Modality::kUnknown;
  }

  [[nodiscard]] Modality of_source(NodeIndex node) const {
    const std::string_view name = base_name(graph_.nodes[node].op);
    if (name == "aten::embedding")
      return takes_all_rows(node) ? Modality::kUnknown : Modality::kText;
    if (name == "aten::conv2d" || name == "aten::conv3d") return Modality::kVision;
    if (name == "aten::conv1d" || name == "aten::stft") return Modality::kAudio;
    if (name == "aten::convolution") return of_kernel(node);
    return Modality::kUnknown;
  }

  // Whether as many rows are taken as the table has: then they are positions, of whatever.
  [[nodiscard]] bool takes_all_rows(NodeIndex node) const {
    const auto operands = flow_.operands(node);
    if (operands.size() < 2) return false;
    const auto& table = shapes_[operands[0].value];
    const auto& indices = shapes_[operands[1].value];
    return table && indices && !table->sizes.empty() && element_count(*indices) > 1 &&
           element_count(*indices) == table->sizes[0];
  }

  // A kernel of four dimensions goes over two, one of three over one.
  [[nodiscard]] Modality of_kernel(NodeIndex node) const {
    const auto operands = flow_.operands(node);
    if (operands.size() < 2 || !shapes_[operands[1].value]) return Modality::kUnknown;
    const size_t rank = shapes_[operands[1].value]->sizes.size();
    return rank >= 4 ? Modality::kVision : rank == 3 ? Modality::kAudio : Modality::kUnknown;
  }

  // Weights and positions are of the kind that they are joined with.
  void take_from_users() {
    for (auto i = static_cast<NodeIndex>(graph_.nodes.size()); i-- > 0;) {
      Modality& modality = graph_.nodes[i].annotation.modality;
      if (modality != Modality::kUnknown) continue;
      for (const NodeIndex user : flow_.users(i)) {
        modality = meet(modality, graph_.nodes[user].annotation.modality);
      }
    }
    for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
      const NodeIndex filler = flow_.filler(i);
      if (filler == kNoNode) continue;
      Modality& modality = graph_.nodes[filler].annotation.modality;
      if (modality == Modality::kUnknown) modality = graph_.nodes[i].annotation.modality;
    }
  }

  // Nodes without data of their own, such as tables of rotary angles, belong to the only modality.
  void fill_gaps(Modality only) {
    for (Node& node : graph_.nodes) {
      if (node.annotation.modality == Modality::kUnknown) node.annotation.modality = only;
    }
  }

  Graph& graph_;
  const Dataflow& flow_;
  const Shapes shapes_;
};

// --- phases of nodes

// In a graph that generates, what comes after the meeting is prefill or decode, as text would be.
void name_phases(Graph& graph, const std::vector<bool>& meets, const std::vector<bool>& decodes) {
  const Phase phase = phase_of(graph);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Annotation& note = graph.nodes[i].annotation;
    if (note.phase != Phase::kUnknown) continue;
    note.phase = phase;
    if (phase != Phase::kForward && phase != Phase::kPrefill) continue;
    const bool fuses = phase == Phase::kForward && note.modality == Modality::kFusion;
    if (meets[i] || fuses) {
      note.phase = Phase::kMultimodalFusion;
    } else if (note.modality == Modality::kVision) {
      note.phase = decodes[i] ? Phase::kVisionDecoding : Phase::kVisionEncoding;
    }
  }
}

// --- cost

// Gives the weight of each node on a path, in flops: what the arithmetic, or, where that is more,
// the memory of a host takes for it. Whole numbers, so that their sums are the same in any order:
// all of the longest path is as long as it.
std::vector<double> estimate_costs(Graph& graph, Shapes shapes) {
  constexpr double kFlopsPerByte = 10;  // of a host with vector units, within a factor of three
  std::vector<double> weights;
  weights.reserve(graph.nodes.size());
  for (Node& node : graph.nodes) {
    const Cost cost = cost_of(node, shapes).value_or(Cost{});
    const auto bytes = static_cast<double>(cost.bytes());
    weights.push_back(std::max(static_cast<double>(cost.flops), bytes * kFlopsPerByte));
    if (node.annotation.flops != 0 || node.annotation.bytes != 0) continue;
    node.annotation.flops = cost.flops;
    node.annotation.bytes = cost.bytes();
  }
  return weights;
}

// --- criticality: how much of the longest path the longest one through an edge is

void name_criticality(Graph& graph, const Dataflow& flow, const std::vector<double>& weights) {
  const auto count = static_cast<NodeIndex>(graph.nodes.size());
  std::vector<double> before(count), after(count);
  for (NodeIndex i = 0; i < count; ++i) {
    for (const auto& operand : flow.operands(i)) {
      if (operand.producer == kNoNode) continue;
      before[i] = std::max(before[i], before[operand.producer] + weights[operand.producer]);
    }
  }
  double longest = 0;
  for (NodeIndex i = count; i-- > 0;) {
    for (const NodeIndex user : flow.users(i))
      after[i] = std::max(after[i], after[user] + weights[user]);
    longest = std::max(longest, before[i] + weights[i] + after[i]);
  }
  if (longest <= 0) return;
  const auto raise = [&](ValueId id, double path) {
    uint8_t& criticality = graph.values[id].criticality;
    criticality = std::max(criticality, static_cast<uint8_t>(255 * path / longest));
  };
  std::vector<bool> said(graph.values.size());
  for (size_t id = 0; id < said.size(); ++id) said[id] = graph.values[id].criticality != 0;
  for (NodeIndex i = 0; i < count; ++i) {
    const double onwards = weights[i] + after[i];
    for (const auto& operand : flow.operands(i)) {
      const NodeIndex from = operand.producer;
      const double path = from == kNoNode ? 0 : before[from] + weights[from];
      if (!said[operand.value]) raise(operand.value, path + onwards);
    }
    for (const ValueId id : graph.nodes[i].outputs) {
      if (!said[id] && flow.family(i) != Family::kView) raise(id, before[i] + onwards);
    }
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

void annotate(Graph& graph, const srg::WeightForms& forms) {
  const auto shapes = shapes_at(graph, upper_symbols(graph), forms);
  const Dataflow flow(graph);
  name_roles(graph, flow, shapes);
  name_residency(graph, flow);
  const std::vector<bool> meets = ModalityFlow(graph, flow, shapes).run();
  name_phases(graph, meets, into_image(graph, flow, shapes));
  name_criticality(graph, flow, estimate_costs(graph, shapes));
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

}  // namespace djinn::sched
