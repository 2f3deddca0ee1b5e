// SPDX-License-Identifier: Apache-2.0

// Draft: a graph while passes change it. A pass finds nodes by what makes a value and who uses it,
// and puts one node in the place of some.
//
// invariant: each node stands for nodes of the client's graph, of which it names the first.
// invariant: what a replaced node made is made by the node in its place, or is used by nobody.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/srg/graph.h"

namespace djinn::srg {

using NodeIndex = uint32_t;

// A weight whose bytes are in another form than elements one by one (load_plan.h), which nothing
// but internal operators can read: a matrix, whose rows lie dense in that form.
struct FormedWeight {
  DType dtype = DType::kInvalid;
  int64_t rows = 0;
  int64_t columns = 0;
};
// By storage of the graph; or empty: there are none.
using FormedWeights = std::vector<std::optional<FormedWeight>>;

// Whose kernels compute internal operators: the host's, or those of kernel/exec/cuda/kernels.
enum class Target : uint8_t { kHost, kGpu };

// Whether the operator writes one of its arguments: told by its name, for there is no schema here.
[[nodiscard]] bool writes_an_argument(std::string_view op);

class Draft {
 public:
  explicit Draft(Graph graph, FormedWeights formed = {}, Target target = Target::kHost);

  [[nodiscard]] Target target() const noexcept { return target_; }
  [[nodiscard]] const Graph& graph() const noexcept { return graph_; }
  [[nodiscard]] NodeIndex node_count() const noexcept {
    return static_cast<NodeIndex>(graph_.nodes.size());
  }
  [[nodiscard]] const Node& node(NodeIndex index) const { return graph_.nodes.at(index); }
  [[nodiscard]] const Value& value(ValueId id) const { return graph_.values.at(id); }
  // nullptr where the storage is none.
  [[nodiscard]] const FormedWeight* formed(StorageIndex storage) const;
  // Whether it is still in the graph.
  [[nodiscard]] bool is_there(NodeIndex index) const { return !gone_.at(index); }
  // The node that makes the value; nothing where none does.
  [[nodiscard]] std::optional<NodeIndex> maker(ValueId value) const;
  // The same, where the value has one use alone.
  [[nodiscard]] std::optional<NodeIndex> lone_maker(ValueId value) const;
  // Nodes that read the value, or did before something took their place; in no order.
  [[nodiscard]] std::span<const NodeIndex> readers(ValueId value) const {
    return readers_.at(value);
  }
  // How many arguments name the value, and one more where it is an output of the graph.
  [[nodiscard]] uint32_t uses(ValueId value) const { return uses_.at(value); }

  // Whether what the first of these nodes reads, and the others, may be read at any of them: no
  // node from the first to the last writes an argument.
  [[nodiscard]] bool may_move(NodeIndex first, NodeIndex last) const;
  [[nodiscard]] bool is_writer(NodeIndex index) const { return writers_.contains(index); }

  // Puts `made` at one of the nodes, which all go. Precondition: what they make is made by `made`,
  // or is used by them alone; what `made` reads is made before that place, and may_move() says yes.
  void fuse(std::span<const NodeIndex> nodes, NodeIndex at, Node made);
  // Precondition: nobody uses what it makes, and it writes nothing.
  void remove(NodeIndex at);
  void replace(NodeIndex at, Node made) { fuse({&at, 1}, at, std::move(made)); }
  // Lets a node read another value. Precondition: at that node they show the same, and lie alike.
  void read_instead(NodeIndex at, ValueId old, ValueId other);

  // The sizes of a value of which a pass has found that it lies contiguous, from the first element
  // of a storage of its own; nullptr where none has.
  [[nodiscard]] const std::vector<Expr>* contiguous_sizes(ValueId value) const;
  void note_contiguous(ValueId value, std::vector<Expr> sizes);

  // Gives the graph without what is gone, for each node the first of the client's that it stands
  // for, and how many of them are ours. A cast that fuse() put there is PyTorch's.
  struct Finished {
    Graph graph;
    std::vector<NodeIndex> origins;
    uint32_t made = 0;
  };
  [[nodiscard]] Finished finish() &&;

 private:
  void note_reads(NodeIndex index);

  Graph graph_;
  FormedWeights formed_;
  Target target_;
  std::vector<std::optional<NodeIndex>> makers_;  // by value
  std::vector<std::vector<NodeIndex>> readers_;   // by value
  std::vector<uint32_t> uses_;                    // by value
  std::map<ValueId, std::vector<Expr>> contiguous_;
  std::vector<bool> gone_;          // by node
  std::vector<bool> made_;          // by node
  std::vector<NodeIndex> origins_;  // by node
  std::set<NodeIndex> writers_;     // nodes that write an argument
};

}  // namespace djinn::srg
