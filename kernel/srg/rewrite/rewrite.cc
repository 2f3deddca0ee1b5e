// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/rewrite.h"

#include <utility>

#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {

Rewriting rewrite(Graph graph) {
  Draft draft(std::move(graph));
  std::vector<PassReport> passes;
  for (const auto pass : {&rewrite_casts, &rewrite_linear, &rewrite_linears, &rewrite_norms,
                          &rewrite_gates, &rewrite_ropes, &rewrite_attention}) {
    passes.push_back(pass(draft));
  }
  Draft::Finished finished = std::move(draft).finish();
  return {std::move(finished.graph), std::move(finished.origins), std::move(passes), finished.made};
}

}  // namespace djinn::srg
