// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/draft.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/srg/operands.h"

namespace djinn::srg {
namespace {

// Tells whether the operator writes an argument, by PyTorch's way of naming such:
// "aten::add_.Tensor".
bool writes_an_argument(std::string_view op) {
  const std::string_view base = op.substr(0, op.find('.', op.find("::")));
  return base.ends_with('_') || op.ends_with("out");
}

}  // namespace

Draft::Draft(Graph graph)
    : graph_(std::move(graph)),
      makers_(graph_.values.size()),
      readers_(graph_.values.size()),
      is_output_(graph_.values.size()),
      gone_(graph_.nodes.size()) {
  for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
    origins_.push_back(i);
    for (const ValueId id : graph_.nodes[i].outputs) makers_.at(id) = i;
    for_each_operand(graph_.nodes[i], [&](ValueId id) { readers_.at(id).push_back(i); });
  }
  for (const ValueId id : graph_.outputs) is_output_.at(id) = true;
}

std::optional<NodeIndex> Draft::maker(ValueId value) const {
  return makers_.at(value);
}

std::optional<NodeIndex> Draft::lone_maker(ValueId value) const {
  return uses(value) == 1 ? makers_.at(value) : std::nullopt;
}

bool Draft::may_move(NodeIndex first, NodeIndex last) const {
  for (NodeIndex i = first; i <= last; ++i) {
    if (!gone_[i] && writes_an_argument(graph_.nodes[i].op)) return false;
  }
  return true;
}

void Draft::fuse(std::span<const NodeIndex> nodes, NodeIndex at, Node made) {
  DJINN_ASSERT(std::ranges::find(nodes, at) != nodes.end());
  made.annotation = graph_.nodes.at(at).annotation;
  for (const NodeIndex i : nodes) {
    DJINN_ASSERT(!gone_.at(i));
    gone_[i] = true;
    origins_[at] = std::min(origins_[at], origins_[i]);
    for_each_operand(graph_.nodes[i], [&](ValueId id) { std::erase(readers_.at(id), i); });
    for (const ValueId id : graph_.nodes[i].outputs) makers_.at(id).reset();
  }
  gone_[at] = false;
  for_each_operand(made, [&](ValueId id) { readers_.at(id).push_back(at); });
  for (const ValueId id : made.outputs) makers_.at(id) = at;
  graph_.nodes[at] = std::move(made);
}

Draft::Finished Draft::finish() && {
  Finished finished{{}, {}};
  std::vector<Node> nodes;
  for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
    if (gone_[i]) continue;
    nodes.push_back(std::move(graph_.nodes[i]));
    finished.origins.push_back(origins_[i]);
  }
  graph_.nodes = std::move(nodes);
  finished.graph = std::move(graph_);
  return finished;
}

}  // namespace djinn::srg
