// SPDX-License-Identifier: Apache-2.0

// Structured: shapes by LibTorch's own functions. Where PyTorch's Python is loaded, kernels in
// Python stand in the place of LibTorch's on the meta device, and take a hundred times as long: a
// forward with arguments of new sizes took longer to record than to compute. The functions below
// are those by which the CPU's kernels make their results, so shapes, layouts and errors are
// theirs.
#pragma once

#include <optional>
#include <string>

#include "python/device/recipe.h"

namespace djinn::device {

// The one result of a call whose tensors are of the meta device or wrapped numbers. Nothing where
// there is no such function, or it is not for these arguments. Throws what the operator throws for
// wrong ones.
std::optional<at::Tensor> structured(const std::string& op, const Stack& stack);

}  // namespace djinn::device
