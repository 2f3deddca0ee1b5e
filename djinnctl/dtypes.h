// SPDX-License-Identifier: Apache-2.0

// What a model's weights are made of: of each dtype, how many tensors and bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel/base/dtype.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

struct DTypeUse {
  DType dtype = DType::kInvalid;  // kInt8 of matrices in that form, too, whatever they were cast to
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // without the gaps between tensors
};

// The most bytes first. Tensors that share their bytes, as tied weights do, count once.
[[nodiscard]] std::vector<DTypeUse> dtypes_of(const srg::ModelManifest& manifest);

}  // namespace djinn::ctl
