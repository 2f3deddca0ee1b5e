// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "kernel/base/checked.h"
#include "kernel/base/int8_rows.h"
#include "kernel/executor/executor.h"

namespace djinn::exec {

Result<uint64_t> bytes_of(const Weight& weight) {
  const Error impossible{ErrorCode::kMalformed, "A weight has impossible sizes."};
  std::vector<uint64_t> factors;
  for (const int64_t size : weight.sizes) {
    if (size < 0) return impossible;
    factors.push_back(static_cast<uint64_t>(size));
  }
  uint64_t element_bytes = size_of(weight.dtype);
  if (weight.form == srg::WeightForm::kInt8) {
    if (factors.size() != 2 || factors[1] > uint64_t{1} << 32) return impossible;
    element_bytes = int8_row_bytes(factors.back());
    factors.pop_back();
  }
  factors.push_back(element_bytes);
  const auto bytes = checked_product(factors);
  return bytes ? Result<uint64_t>(*bytes) : impossible;
}

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

bool reads_forms(const srg::Graph& graph, const WeightTable& weights) {
  return std::ranges::any_of(graph.storages, [&](const srg::Storage& storage) {
    if (storage.kind != srg::StorageKind::kWeight) return false;
    const Weight* const weight = weights.find(storage.name);
    return weight != nullptr && weight->form != srg::WeightForm::kPlain;
  });
}

}  // namespace djinn::exec
