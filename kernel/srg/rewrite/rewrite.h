// SPDX-License-Identifier: Apache-2.0

// rewrite(): the graph that our own kernels compute in place of a graph whose numerics are fast.
//
// invariant: symbols, storages, values and outputs stay as they are, so whoever binds the one can
// bind the other. Nodes change, and one may stand for several: its annotation is that of the one
// whose place it has. A value inside of it is made by nobody.
// What such a node makes need not be numbered consecutively, as verify() wants it of clients.
// invariant: what comes out names internal operators, which admission takes from here alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"
#include "kernel/srg/pass_report.h"
#include "kernel/srg/rewrite/draft.h"

namespace djinn::srg {

// Of djinn::linear_rows: more rows are PyTorch's, but for float32 on some machines, and for weights
// in int8 on all.
inline constexpr int64_t kLinearRowsMax = 32;

// Those of the graph's weights that a model has in another form; empty where it names none.
[[nodiscard]] FormedWeights formed_weights(const Graph& graph, std::span<const TensorEntry> model);

struct Rewriting {
  Graph graph;
  std::vector<uint32_t> origins;  // by node: the first of the graph's nodes that it stands for
  std::vector<PassReport> passes;
  uint32_t made = 0;  // of its nodes, those that our own kernels compute
  // What reads a weight in another form than its kernels do, in a sentence: the graph cannot be
  // computed. Empty: nothing does.
  std::string left_with_forms;
};

// Precondition: verify() accepts the graph, and admission has. A GPU has no kernels for weights in
// another form: none is named to it.
[[nodiscard]] Rewriting rewrite(Graph graph, FormedWeights formed = {},
                                Target target = Target::kHost);
// Casts alone, of a graph whose numerics may be exact: what was recorded as zeros and a copy into
// them is PyTorch's cast again, which has the copy's bits and fills nothing before. Nothing is made
// that our own kernels compute. Precondition: as above.
[[nodiscard]] Rewriting restore_casts(Graph graph);

}  // namespace djinn::srg
