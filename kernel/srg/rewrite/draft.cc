// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/draft.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "kernel/base/assert.h"
#include "kernel/srg/operands.h"

namespace djinn::srg {

// PyTorch's names of such end in "_" ("aten::add_.Tensor"), but for these.
bool writes_an_argument(std::string_view op) {
  constexpr std::array<std::string_view, 3> kOthers = {
      "aten::_batch_norm_with_update", "aten::_native_batch_norm_legit", "djinn::kv_append"};
  const std::string_view base = op.substr(0, op.find('.'));
  return base.ends_with('_') || std::ranges::find(kOthers, op) != kOthers.end();
}

Draft::Draft(Graph graph, FormedWeights formed, Target target)
    : graph_(std::move(graph)),
      formed_(std::move(formed)),
      target_(target),
      makers_(graph_.values.size()),
      readers_(graph_.values.size()),
      uses_(graph_.values.size()),
      gone_(graph_.nodes.size()),
      made_(graph_.nodes.size()) {
  for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
    origins_.push_back(i);
    for (const ValueId id : graph_.nodes[i].outputs) makers_.at(id) = i;
    note_reads(i);
    if (writes_an_argument(graph_.nodes[i].op)) writers_.insert(i);
  }
  for (const ValueId id : graph_.outputs) ++uses_.at(id);
}

const FormedWeight* Draft::formed(StorageIndex storage) const {
  if (storage >= formed_.size() || !formed_[storage]) return nullptr;
  return &*formed_[storage];
}

void Draft::note_reads(NodeIndex index) {
  for_each_operand(graph_.nodes[index], [&](ValueId id) {
    readers_.at(id).push_back(index);
    ++uses_.at(id);
  });
}

std::optional<NodeIndex> Draft::maker(ValueId value) const {
  return makers_.at(value);
}

std::optional<NodeIndex> Draft::lone_maker(ValueId value) const {
  return uses(value) == 1 ? makers_.at(value) : std::nullopt;
}

bool Draft::may_move(NodeIndex first, NodeIndex last) const {
  const auto writer = writers_.lower_bound(first);
  return writer == writers_.end() || *writer > last;
}

void Draft::fuse(std::span<const NodeIndex> nodes, NodeIndex at, Node made) {
  DJINN_ASSERT(std::ranges::find(nodes, at) != nodes.end());
  made.annotation = graph_.nodes.at(at).annotation;
  for (const NodeIndex i : nodes) {
    DJINN_ASSERT(!gone_.at(i));
    gone_[i] = true;
    origins_[at] = std::min(origins_[at], origins_[i]);
    for_each_operand(graph_.nodes[i], [&](ValueId id) { --uses_.at(id); });
    writers_.erase(i);
    for (const ValueId id : graph_.nodes[i].outputs) makers_.at(id).reset();
  }
  gone_[at] = false;
  made_[at] = true;
  for (const ValueId id : made.outputs) makers_.at(id) = at;
  graph_.nodes[at] = std::move(made);
  note_reads(at);
}

void Draft::remove(NodeIndex at) {
  DJINN_ASSERT(!gone_.at(at) && !is_writer(at));
  gone_[at] = true;
  for_each_operand(graph_.nodes[at], [&](ValueId id) { --uses_.at(id); });
  for (const ValueId id : graph_.nodes[at].outputs) {
    DJINN_ASSERT(uses_.at(id) == 0);
    makers_.at(id).reset();
  }
}

void Draft::read_instead(NodeIndex at, ValueId old, ValueId other) {
  for (Argument& argument : graph_.nodes.at(at).arguments) {
    auto* const ref = std::get_if<ValueRef>(&argument.value);
    if (ref == nullptr || ref->id != old) continue;
    ref->id = other;
    --uses_.at(old);
    ++uses_.at(other);
    readers_.at(other).push_back(at);
  }
}

const std::vector<Expr>* Draft::contiguous_sizes(ValueId value) const {
  const auto found = contiguous_.find(value);
  return found == contiguous_.end() ? nullptr : &found->second;
}

void Draft::note_contiguous(ValueId value, std::vector<Expr> sizes) {
  contiguous_.insert_or_assign(value, std::move(sizes));
}

Draft::Finished Draft::finish() && {
  Finished finished;
  std::vector<Node> nodes;
  for (NodeIndex i = 0; i < graph_.nodes.size(); ++i) {
    if (gone_[i]) continue;
    nodes.push_back(std::move(graph_.nodes[i]));
    finished.origins.push_back(origins_[i]);
    finished.made += made_[i] && nodes.back().op.starts_with("djinn::") ? 1 : 0;
  }
  graph_.nodes = std::move(nodes);
  finished.graph = std::move(graph_);
  return finished;
}

}  // namespace djinn::srg
