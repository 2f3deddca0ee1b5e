// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/dtypes.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

namespace djinn::ctl {

std::vector<DTypeUse> dtypes_of(const srg::ModelManifest& manifest) {
  std::map<DType, DTypeUse> uses;
  std::set<std::pair<uint32_t, uint64_t>> places;
  for (const srg::TensorEntry& tensor : manifest.tensors) {
    const bool is_alias = tensor.bytes > 0 && !places.insert({tensor.extent, tensor.offset}).second;
    if (is_alias) continue;
    const bool is_int8 = tensor.form == srg::WeightForm::kInt8;
    const DType dtype = is_int8 ? DType::kInt8 : tensor.dtype;
    DTypeUse& use = uses[dtype];
    use.dtype = dtype;
    ++use.tensors;
    use.bytes += tensor.bytes;
  }
  std::vector<DTypeUse> sorted;
  for (const auto& [dtype, use] : uses) sorted.push_back(use);
  std::ranges::stable_sort(sorted, std::greater(), &DTypeUse::bytes);
  return sorted;
}

}  // namespace djinn::ctl
