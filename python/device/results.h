// SPDX-License-Identifier: Apache-2.0

// Results: what a call of an operator gives back to PyTorch, as tensors; and, for lines of the
// debug levels, the call in words.
#pragma once

#include <string>
#include <vector>

#include "python/device/link.h"
#include "python/device/log.h"

namespace djinn::device {

// A tensor for each of the recipe's products: `tensors` are the call's arguments.
std::vector<at::Tensor> make_results(const Entry& entry, const std::vector<at::Tensor>& tensors);
// They replace the arguments on the stack, in a list where the operator gives one.
void put_results(const Recipe& recipe, std::vector<at::Tensor> results, Stack& stack);
// A tensor of what djinnd has made and described.
at::Tensor adopt(Described described);

// "aten::add.Tensor Float[2, 3] Float[3]"
std::string describe(const c10::OperatorHandle& op, const Stack& stack);
// "gives Float[2, 3]"; null: only djinnd can tell.
std::string describe_products(const Recipe* recipe);

}  // namespace djinn::device
