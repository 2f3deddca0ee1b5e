// SPDX-License-Identifier: Apache-2.0

// How many tensors a call gives that gives a list of them: a number from a graph may ask for
// millions, and each takes memory that nobody granted. So the count is compared with the results
// that the node names before the operator is called.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Of a filled stack; nothing where the operator itself will refuse the arguments, or where only the
// tensors that the node names decide. Throws c10::Error for a dimension that is out of range.
using ListCount = std::optional<int64_t> (*)(const std::vector<c10::IValue>& stack);

// Null for an operator whose list is no longer than its arguments' lists and ranks.
[[nodiscard]] ListCount list_count_of(std::string_view op);

}  // namespace djinn::exec
