// SPDX-License-Identifier: Apache-2.0

// The operators that a graph may call, by qualified name: "namespace::name" or
// "namespace::name.overload". What is not here is refused (ARCHITECTURE rule 8). Client and daemon
// have this one table.
//
// An operator belongs here if its CPU kernel checks every index that it reads from a tensor and
// every shape that it relies on (or kernel/exec/guards.cc does it before the call), returns no
// uninitialised bytes, keeps no state, changes no argument unsaid, draws no random number and gives
// back tensors only. Forms with out= are left to the client, which calls the functional ones.
#pragma once

#include <span>
#include <string_view>

namespace djinn::srg {

// Sorted.
[[nodiscard]] std::span<const std::string_view> allowed_operators();

[[nodiscard]] bool is_allowed(std::string_view qualified);

// Of these the ones that a graph may call on a GPU, sorted: nobody can look at the indices in a
// tensor there before the call, so their CUDA kernels check them by themselves; the same arguments
// give the same bits; and PyTorch's own kernels or cuBLAS compute them.
[[nodiscard]] std::span<const std::string_view> allowed_on_gpu();

[[nodiscard]] bool is_allowed_on_gpu(std::string_view qualified);

}  // namespace djinn::srg
