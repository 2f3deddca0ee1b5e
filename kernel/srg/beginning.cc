// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/beginning.h"

#include "kernel/base/assert.h"

namespace djinn::srg {
namespace {

class Cutter {
 public:
  Cutter(const Graph& graph, size_t count)
      : whole_(graph), is_kept_(graph.values.size()), ids_(graph.values.size()) {
    cut_.graph.name = graph.name;
    cut_.graph.symbols = graph.symbols;
    cut_.graph.nodes.assign(graph.nodes.begin(),
                            graph.nodes.begin() + static_cast<ptrdiff_t>(count));
    cut_.storages.resize(graph.storages.size());
  }

  Beginning cut() && {
    for (Node& node : cut_.graph.nodes) {
      each_id(node, [&](ValueId& id) { is_kept_[id] = true; });
    }
    keep_storages();
    keep_values();
    for (Node& node : cut_.graph.nodes) {
      each_id(node, [&](ValueId& id) { id = ids_[id]; });
    }
    for (size_t i = 0; i < whole_.outputs.size(); ++i) {
      const ValueId id = whole_.outputs[i];
      if (!is_kept_[id]) continue;
      cut_.graph.outputs.push_back(ids_[id]);
      cut_.outputs.push_back(i);
    }
    return std::move(cut_);
  }

 private:
  // Calls f with each value that the node uses, and with each that it makes.
  template <typename F>
  static void each_id(Node& node, const F& f) {
    for (Argument& argument : node.arguments) {
      if (auto* one = std::get_if<ValueRef>(&argument.value)) f(one->id);
      if (auto* list = std::get_if<ValueList>(&argument.value)) {
        for (auto& id : list->ids) {
          if (id) f(*id);
        }
      }
    }
    for (ValueId& id : node.outputs) f(id);
  }

  // Storages keep their order, as values do.
  void keep_storages() {
    std::vector<bool> is_used(whole_.storages.size());
    for (ValueId id = 0; id < whole_.values.size(); ++id) {
      const StorageIndex storage = whole_.values[id].storage;
      if (is_kept_[id] && storage != kLocalStorage) is_used[storage] = true;
    }
    for (StorageIndex i = 0; i < is_used.size(); ++i) {
      if (!is_used[i]) continue;
      cut_.storages[i] = static_cast<StorageIndex>(cut_.graph.storages.size());
      cut_.graph.storages.push_back(whole_.storages[i]);
    }
  }

  void keep_values() {
    for (ValueId id = 0; id < whole_.values.size(); ++id) {
      if (!is_kept_[id]) continue;
      ids_[id] = static_cast<ValueId>(cut_.graph.values.size());
      Value value = whole_.values[id];
      if (value.storage != kLocalStorage) value.storage = *cut_.storages[value.storage];
      cut_.graph.values.push_back(std::move(value));
    }
  }

  const Graph& whole_;
  Beginning cut_;
  std::vector<bool> is_kept_;  // by value of the whole, as the next
  std::vector<ValueId> ids_;
};

}  // namespace

Beginning beginning_of(const Graph& graph, size_t count) {
  DJINN_ASSERT(count <= graph.nodes.size());
  return Cutter(graph, count).cut();
}

}  // namespace djinn::srg
