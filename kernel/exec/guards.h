// SPDX-License-Identifier: Apache-2.0

// What a CPU kernel of an allowed operator fails to check itself, and a client could use to read or
// write memory that is not its own or that nobody wrote, to end the worker, to draw a random number
// or to change an argument unsaid. Each was found by calling every operator with hostile indices
// and shapes.
//
// A guard is a row of its family's file; guard_dispatch.h says where it stands.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Throws c10::Error for arguments that the kernel must not see. The stack is filled; tensors are
// the run's, or on meta, where they have sizes and no values. Optional tensors may be undefined.
using Guard = void (*)(const std::vector<c10::IValue>& stack);

struct GuardRow {
  std::string_view op;
  Guard guard;
};

// The families. No operator is in two.
std::span<const GuardRow> attention_guards();
std::span<const GuardRow> layers_guards();
std::span<const GuardRow> losses_guards();
std::span<const GuardRow> math_guards();

// Null for an operator that needs none.
[[nodiscard]] Guard guard_of(std::string_view op);

// All that have one.
[[nodiscard]] std::vector<std::string_view> guarded_operators();

}  // namespace djinn::exec
