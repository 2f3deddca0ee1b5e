// SPDX-License-Identifier: Apache-2.0

// The beginning of a graph as a graph: what comes before an operator that fails.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "kernel/srg/graph.h"

namespace djinn::srg {

struct Beginning {
  Graph graph;
  // By storage of the whole graph: its number here; nothing where no node here uses it.
  std::vector<std::optional<StorageIndex>> storages;
  std::vector<size_t> outputs;  // by output here: its number in the whole graph
};

// The first `count` nodes with what they use, and the outputs that they make. Symbols are those of
// the whole. Precondition: verify() accepts the graph, which has as many nodes. It may refuse the
// beginning: the view that gives an input its role may not be in it.
Beginning beginning_of(const Graph& graph, size_t count);

}  // namespace djinn::srg
