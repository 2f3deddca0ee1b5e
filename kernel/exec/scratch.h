// SPDX-License-Identifier: Apache-2.0

// What a CPU kernel of an allowed operator takes for itself in containers of C++, which no
// allocator of LibTorch sees: as much as an operand has elements, which may be a view that holds
// one byte. It counts as the lane's heap for as long as the kernel runs, so it is granted, or
// refused before the kernel is called, as the memory of results is.
//
// A row is an operator whose kernel takes more than it gives; guard_dispatch.h asks for it.
// Workspace of libraries (what oneDNN and MKL pack) is not counted: daemon/worker bounds that.
#pragma once

#include <string_view>
#include <vector>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Bytes at most. The stack is filled; tensors may be on meta.
using Scratch = uint64_t (*)(const std::vector<c10::IValue>& stack);

// Null for an operator that takes none to speak of.
[[nodiscard]] Scratch scratch_of(std::string_view op);

[[nodiscard]] std::vector<std::string_view> operators_with_scratch();

}  // namespace djinn::exec
