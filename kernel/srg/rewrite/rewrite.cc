// SPDX-License-Identifier: Apache-2.0

#include "kernel/srg/rewrite/rewrite.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "kernel/srg/rewrite/passes.h"

namespace djinn::srg {

FormedWeights formed_weights(const Graph& graph, std::span<const TensorEntry> model) {
  std::map<std::string_view, const TensorEntry*> by_name;
  for (const TensorEntry& entry : model) {
    if (entry.form != WeightForm::kPlain && entry.sizes.size() == 2) by_name[entry.name] = &entry;
  }
  FormedWeights formed;
  for (StorageIndex i = 0; i < graph.storages.size(); ++i) {
    if (graph.storages[i].kind != StorageKind::kWeight) continue;
    const auto found = by_name.find(graph.storages[i].name);
    if (found == by_name.end()) continue;
    const TensorEntry& entry = *found->second;
    formed.resize(graph.storages.size());
    formed[i] = {entry.dtype, static_cast<int64_t>(entry.sizes[0]),
                 static_cast<int64_t>(entry.sizes[1])};
  }
  return formed;
}

Rewriting rewrite(Graph graph, FormedWeights formed, Target target) {
  const bool has_forms =
      std::ranges::any_of(formed, [](const auto& weight) { return weight.has_value(); });
  Draft draft(std::move(graph), std::move(formed), target);
  std::vector<PassReport> passes;
  for (const auto pass : {&rewrite_casts, &rewrite_linear, &rewrite_linears, &rewrite_norms,
                          &rewrite_gates, &rewrite_ropes, &rewrite_attention}) {
    passes.push_back(pass(draft));
  }
  std::string left;
  if (has_forms) {
    passes.push_back(rewrite_embeddings(draft));
    left = left_with_forms(draft);
  }
  Draft::Finished finished = std::move(draft).finish();
  return {std::move(finished.graph), std::move(finished.origins), std::move(passes), finished.made,
          std::move(left)};
}

Rewriting restore_casts(Graph graph) {
  Draft draft(std::move(graph));
  std::vector<PassReport> passes{rewrite_casts(draft)};
  Draft::Finished finished = std::move(draft).finish();
  return {
      std::move(finished.graph), std::move(finished.origins), std::move(passes), finished.made, {}};
}

}  // namespace djinn::srg
