// SPDX-License-Identifier: Apache-2.0

// What measure_kernels.cc compares.
#pragma once

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

enum class ProductBy { kOwn, kLibrary };

// djinn::linear_rows without a bias, computed by one of the two, where programs have ours.
// Precondition: ours can compute it.
[[nodiscard]] at::Tensor product_by(ProductBy who, const at::Tensor& input,
                                    const at::Tensor& weight, bool turned);

}  // namespace djinn::exec
