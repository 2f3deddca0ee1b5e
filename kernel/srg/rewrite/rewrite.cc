// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/rewrite.h"

#include <utility>

#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {

uint32_t Rewriting::fired() const {
  uint32_t nodes = 0;
  for (const PassReport& pass : passes) nodes += pass.fired;
  return nodes;
}

Rewriting rewrite(Graph graph) {
  Rewriting rewriting{std::move(graph), {}};
  rewriting.passes.push_back(rewrite_linear(rewriting.graph));
  return rewriting;
}

}  // namespace djinn::srg
