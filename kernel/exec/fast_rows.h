// SPDX-License-Identifier: Apache-2.0

// What our own operators share: how a tensor's rows lie, and the kernels of this machine.
#pragma once

#include <cstdint>
#include <optional>

#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Of the level that was chosen at the start.
[[nodiscard]] const kernels::Kernels& fast_kernels();

// Nothing where our kernels do not compute on the type.
[[nodiscard]] std::optional<kernels::Element> element_of(at::ScalarType type);

// The distance of two rows where those of [..., K] lie at even distances, dense in themselves.
[[nodiscard]] std::optional<int64_t> row_stride(const at::Tensor& tensor);

}  // namespace djinn::exec
