// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "kernel/executor/executor.h"

namespace djinn::exec {

WeightTable::WeightTable(std::vector<Weight> weights) : weights_(std::move(weights)) {
  std::sort(weights_.begin(), weights_.end(),
            [](const Weight& a, const Weight& b) { return a.name < b.name; });
}

const Weight* WeightTable::find(std::string_view name) const {
  const auto at = std::lower_bound(
      weights_.begin(), weights_.end(), name,
      [](const Weight& weight, std::string_view key) { return weight.name < key; });
  return at != weights_.end() && at->name == name ? &*at : nullptr;
}

}  // namespace djinn::exec
