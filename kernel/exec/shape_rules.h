// Shape rules of our own, for operators whose meta kernel LibTorch has in Python only, or whose
// meta kernel picks another layout than the CPU does.
#pragma once

#include <optional>
#include <vector>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// The results of op on a stack of meta tensors, or nothing if there is no rule. Throws c10::Error
// for shapes that the operator would refuse.
[[nodiscard]] std::optional<std::vector<at::Tensor>> apply_shape_rule(
    const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack);

}  // namespace djinn::exec
