// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/dataflow.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/srg/operands.h"

namespace djinn::sched {
namespace {

// Tells whether the node takes nothing of what its first operand held.
bool overwrites(const srg::Node& node, Family family) {
  return is_in_place(node.op) &&
         (family == Family::kCopy || family == Family::kFill || family == Family::kAppend);
}

}  // namespace

Dataflow::Dataflow(const srg::Graph& graph)
    : operands_of_(graph.nodes.size()),
      fillers_(graph.nodes.size(), kNoNode),
      roots_(graph.values.size()),
      writers_(graph.storages.size(), kNoNode),
      untouched_(graph.storages.size(), kNoNode),
      storages_(static_cast<uint32_t>(graph.storages.size())) {
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].storage != srg::kLocalStorage) roots_[id] = graph.values[id].storage;
  }
  families_.reserve(graph.nodes.size());
  for (const srg::Node& node : graph.nodes) families_.push_back(family_of(node.op));
  for (NodeIndex i = 0; i < graph.nodes.size(); ++i) add_node(graph, i);
  find_sources();
  const auto is_no_view = [&](NodeIndex node) { return families_[node] != Family::kView; };
  const auto is_no_copy = [&](NodeIndex node) {
    return is_no_view(node) && families_[node] != Family::kCopy;
  };
  list_uses([](NodeIndex producer) { return producer; }, is_no_view, users_, users_of_);
  list_uses([&](NodeIndex producer) { return sources_[producer]; }, is_no_copy, readers_,
            readers_of_);
}

void Dataflow::add_node(const srg::Graph& graph, NodeIndex node) {
  const srg::Node& call = graph.nodes[node];
  const Family family = families_[node];
  bool left_out = !overwrites(call, family);
  std::optional<uint32_t> first;
  operands_of_[node].begin = static_cast<uint32_t>(operands_.size());
  srg::for_each_operand(call, [&](srg::ValueId id) {
    const uint32_t root = roots_[id];
    if (!first) first = root;
    if (!std::exchange(left_out, true)) return;
    if (family != Family::kView) untouched_[root] = kNoNode;
    const bool of_graph = root < storages_;
    operands_.push_back({id, writers_[root], of_graph ? root : srg::kLocalStorage});
  });
  operands_of_[node].end = static_cast<uint32_t>(operands_.size());
  const bool same_memory = first && (family == Family::kView || is_in_place(call.op));
  for (const srg::ValueId id : call.outputs) {
    if (!same_memory) {
      roots_[id] = static_cast<uint32_t>(writers_.size());
      writers_.push_back(node);
      untouched_.push_back(family == Family::kFill ? node : kNoNode);
    } else {
      roots_[id] = *first;
    }
  }
  if (same_memory && family != Family::kView) write(node, *first);
}

void Dataflow::write(NodeIndex node, uint32_t root) {
  fillers_[node] = std::exchange(untouched_[root], kNoNode);
  writers_[root] = node;
}

// A copy of a storage is its own source.
void Dataflow::find_sources() {
  sources_.resize(families_.size());
  for (NodeIndex i = 0; i < sources_.size(); ++i) {
    sources_[i] = i;
    if (families_[i] != Family::kCopy || operands(i).empty()) continue;
    const NodeIndex copied = operands(i)[0].producer;
    if (copied != kNoNode) sources_[i] = sources_[copied];
  }
}

// Counts first, and then fills in, so that all lists lie in one.
template <typename Through, typename Counts>
void Dataflow::list_uses(const Through& through, const Counts& counts,
                         std::vector<NodeIndex>& lists, std::vector<Range>& ranges) const {
  const auto count = static_cast<NodeIndex>(families_.size());
  ranges.resize(count);
  std::vector<NodeIndex> last(count);
  const auto for_each_use = [&](auto&& visit) {
    std::ranges::fill(last, kNoNode);
    for (NodeIndex i = 0; i < count; ++i) {
      if (!counts(i)) continue;
      for (const Operand& operand : operands(i)) {
        if (operand.producer == kNoNode) continue;
        const NodeIndex used = through(operand.producer);
        if (std::exchange(last[used], i) != i) visit(used, i);
      }
    }
  };
  for_each_use([&](NodeIndex used, NodeIndex) { ++ranges[used].end; });
  uint32_t at = 0;
  for (Range& range : ranges) {
    range.begin = at;
    at += std::exchange(range.end, at);
  }
  lists.resize(at);
  for_each_use([&](NodeIndex used, NodeIndex user) { lists[ranges[used].end++] = user; });
}

std::span<const Dataflow::Operand> Dataflow::operands(NodeIndex node) const {
  const Range& range = operands_of_[node];
  return std::span(operands_).subspan(range.begin, range.end - range.begin);
}

std::span<const NodeIndex> Dataflow::users(NodeIndex node) const {
  const Range& range = users_of_[node];
  return std::span(users_).subspan(range.begin, range.end - range.begin);
}

std::span<const NodeIndex> Dataflow::readers(NodeIndex node) const {
  const Range& range = readers_of_[node];
  return std::span(readers_).subspan(range.begin, range.end - range.begin);
}

bool Dataflow::writes_input(const srg::Graph& graph, NodeIndex node) const {
  const srg::Node& call = graph.nodes[node];
  if (call.outputs.empty() || !is_in_place(call.op)) return false;
  const uint32_t root = roots_[call.outputs[0]];
  return root < storages_ && graph.storages[root].kind == srg::StorageKind::kInput;
}

NodeIndex Dataflow::producer_at_end(srg::ValueId value) const {
  return writers_[roots_[value]];
}

}  // namespace djinn::sched
