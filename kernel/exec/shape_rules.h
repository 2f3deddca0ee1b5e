// SPDX-License-Identifier: Apache-2.0

// Shape rules of our own, for operators whose meta kernel LibTorch has in Python only, or whose
// meta kernel picks another layout than the CPU does.
#pragma once

#include <string_view>
#include <vector>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// The results on a stack of meta tensors. Throws c10::Error for shapes that the operator would
// refuse.
using ShapeRule = std::vector<at::Tensor> (*)(const std::vector<c10::IValue>& stack);

// Null if there is no rule.
[[nodiscard]] ShapeRule shape_rule_of(std::string_view op);

}  // namespace djinn::exec
