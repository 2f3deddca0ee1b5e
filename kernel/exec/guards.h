// SPDX-License-Identifier: Apache-2.0

// What a CPU kernel of an allowed operator fails to check itself, and a client could use to read or
// write memory that is not its own, to draw a random number or to change an argument unsaid. Each
// was found by calling every operator with hostile indices and shapes.
#pragma once

#include <string_view>
#include <vector>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Throws c10::Error for arguments that the kernel must not see. The stack is filled, tensors are
// the run's.
using Guard = void (*)(const std::vector<c10::IValue>& stack);

// Null for an operator that needs none.
[[nodiscard]] Guard guard_of(std::string_view op);

// All that have one, for tests.
[[nodiscard]] std::vector<std::string_view> guarded_operators();

}  // namespace djinn::exec
