// SPDX-License-Identifier: Apache-2.0

// What reads weights that are int8: products (linear.cc) and lookups of rows,
//
//   aten::embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
//
// whose other arguments are of training; and what else does, which the graph is refused for.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/srg/operands.h"
#include "kernel/srg/rewrite/constant_matrix.h"
#include "kernel/srg/rewrite/match.h"
#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {
namespace {

// Which argument of an internal operator such a weight, or a list of them, may be.
struct Reader {
  std::string_view op;
  size_t argument;
};
constexpr Reader kReaders[] = {
    {"djinn::embedding_rows", 0}, {"djinn::linear_rows", 1}, {"djinn::linears", 1}};

bool is_view_of_a_matrix(std::string_view op) {
  return op == "aten::as_strided" || op == "aten::t";
}

class Left {
 public:
  explicit Left(Draft& draft) : draft_(draft), roots_(draft.graph().values.size(), nullptr) {
    const Graph& graph = draft.graph();
    for (ValueId id = 0; id < graph.values.size(); ++id) {
      const StorageIndex storage = graph.values[id].storage;
      if (draft.formed(storage) != nullptr) roots_[id] = &graph.storages[storage];
    }
    // What a view shows is read by who reads the view.
    for (NodeIndex i = 0; i < draft.node_count(); ++i) {
      if (!is_view(i)) continue;
      for (const ValueId id : draft.node(i).outputs) roots_[id] = root_read_by(i);
    }
  }

  void drop_views() {
    for (NodeIndex i = draft_.node_count(); i-- > 0;) {
      if (is_view(i) && draft_.uses(draft_.node(i).outputs[0]) == 0) draft_.remove(i);
    }
  }

  [[nodiscard]] std::string tell() const {
    for (NodeIndex i = 0; i < draft_.node_count(); ++i) {
      if (!draft_.is_there(i) || is_view(i)) continue;
      if (const Storage* const root = root_read_by(i)) return sentence(i, *root);
    }
    for (const ValueId id : draft_.graph().outputs) {
      if (roots_[id] != nullptr) return "An output of the graph is " + name_of(*roots_[id]) + ".";
    }
    return {};
  }

 private:
  [[nodiscard]] bool is_view(NodeIndex i) const {
    return draft_.is_there(i) && is_view_of_a_matrix(draft_.node(i).op) &&
           draft_.node(i).outputs.size() == 1 && root_read_by(i) != nullptr;
  }

  // The weight that the node reads otherwise than its kernel does; nullptr where there is none.
  [[nodiscard]] const Storage* root_read_by(NodeIndex i) const {
    const Node& node = draft_.node(i);
    const auto* const reader = std::ranges::find(kReaders, node.op, &Reader::op);
    const Storage* found = nullptr;
    for (size_t a = 0; a < node.arguments.size(); ++a) {
      if (reader != std::end(kReaders) && a == reader->argument) continue;
      Node one;
      one.arguments = {node.arguments[a]};
      for_each_operand(one, [&](ValueId id) {
        if (roots_[id] != nullptr) found = roots_[id];
      });
    }
    return found;
  }

  static std::string name_of(const Storage& weight) {
    return "the weight " + weight.name.substr(0, 200) + ", which is int8";
  }

  [[nodiscard]] std::string sentence(NodeIndex i, const Storage& root) const {
    const Node& node = draft_.node(i);
    std::string text = "Node " + std::to_string(i) + ", " + node.op;
    if (!node.annotation.module_path.empty()) text += " at " + node.annotation.module_path;
    return text + ", reads " + name_of(root) + ".";
  }

  Draft& draft_;
  std::vector<const Storage*> roots_;  // by value: the weight that it shows
};

}  // namespace

PassReport rewrite_embeddings(Draft& draft) {
  PassReport report{"embedding", 0, {}};
  const ConstantMatrices matrices(draft);
  for (NodeIndex i = 0; i < draft.node_count(); ++i) {
    if (!draft.is_there(i) || draft.node(i).op != "aten::embedding") continue;
    const auto weight = value_at(draft.node(i), 0), indices = value_at(draft.node(i), 1);
    const auto matrix = weight ? matrices.find(*weight) : std::nullopt;
    if (!matrix || !matrix->form || !indices) continue;
    if (!matrix->form->is_whole || matrix->form->is_turned || matrix->form->base_is_turned) {
      report.leave("it reads a part of a weight that is int8");
      continue;
    }
    draft.replace(
        i, {"djinn::embedding_rows",
            {{"", ValueRef{matrix->form->base}}, {"", ValueRef{*indices}}, {"", matrix->dtype}},
            draft.node(i).outputs,
            {}});
    ++report.fired;
  }
  return report;
}

std::string left_with_forms(Draft& draft) {
  Left left(draft);
  left.drop_views();
  return left.tell();
}

}  // namespace djinn::srg
