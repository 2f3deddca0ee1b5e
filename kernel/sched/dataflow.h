// SPDX-License-Identifier: Apache-2.0

// Dataflow: which node made what a node reads. It walks roots and not view operators, so a recorded
// graph, in which every view is an as_strided, every cast a copy into zeros and every sum perhaps
// in place, reads like one that a builder wrote.
//
//   root      the memory behind a value: a storage of the graph, or what a node made
//   producer  of an operand: the node that last wrote its root before. A view is nobody's producer
//   source    of a node: itself, or, of a copy, the source of what it copies
//   reader    of a node that is no copy: who reads what it made, or a copy of that
//   filler    of a node that overwrites its root: the node that made the memory (zeros), if nobody
//             has used it since
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/sched/operators.h"
#include "kernel/srg/graph.h"

namespace djinn::sched {

using NodeIndex = uint32_t;
inline constexpr NodeIndex kNoNode = UINT32_MAX;

class Dataflow {
 public:
  // Precondition: verify() passed graph, which outlives this. Linear in its size.
  explicit Dataflow(const srg::Graph& graph);

  struct Operand {
    srg::ValueId value = 0;
    NodeIndex producer = kNoNode;                    // none: it is of a storage
    srg::StorageIndex storage = srg::kLocalStorage;  // which the root is, if it is one
  };

  [[nodiscard]] Family family(NodeIndex node) const { return families_[node]; }
  // In order of the arguments; without what the node only overwrites. Of a view likewise.
  [[nodiscard]] std::span<const Operand> operands(NodeIndex node) const;
  // The nodes that read what this one made, in order, each once; no views.
  [[nodiscard]] std::span<const NodeIndex> users(NodeIndex node) const;
  [[nodiscard]] NodeIndex source(NodeIndex node) const { return sources_[node]; }
  // Likewise; no copies.
  [[nodiscard]] std::span<const NodeIndex> readers(NodeIndex node) const;
  [[nodiscard]] NodeIndex filler(NodeIndex node) const { return fillers_[node]; }
  // Whether the node writes an input, which is a state that outlives the run.
  [[nodiscard]] bool writes_input(const srg::Graph& graph, NodeIndex node) const;
  // Of what is in memory after the last node.
  [[nodiscard]] NodeIndex producer_at_end(srg::ValueId value) const;

 private:
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  void add_node(const srg::Graph& graph, NodeIndex node);
  void write(NodeIndex node, uint32_t root);
  void find_sources();
  // Lists for each node who uses it: through(producer) says whom a use counts for, kNoNode: nobody.
  template <typename Through, typename Counts>
  void list_uses(const Through& through, const Counts& counts, std::vector<NodeIndex>& lists,
                 std::vector<Range>& ranges) const;

  std::vector<Family> families_;
  std::vector<Operand> operands_;
  std::vector<Range> operands_of_;  // of each node
  std::vector<NodeIndex> users_;
  std::vector<Range> users_of_;  // of each node
  std::vector<NodeIndex> readers_;
  std::vector<Range> readers_of_;  // of each node
  std::vector<NodeIndex> sources_;
  std::vector<NodeIndex> fillers_;
  std::vector<uint32_t> roots_;       // of each value; storages first
  std::vector<NodeIndex> writers_;    // of each root, so far
  std::vector<NodeIndex> untouched_;  // of each root: the fill that nobody has read, so far
  uint32_t storages_ = 0;
};

}  // namespace djinn::sched
