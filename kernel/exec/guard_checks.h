// SPDX-License-Identifier: Apache-2.0

// What the guards of several families have in common. All throw c10::Error; positions are those of
// the schema.
#pragma once

#include <array>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

using Stack = std::vector<c10::IValue>;

// Null for an optional tensor that was left out; operators that call others give undefined ones.
[[nodiscard]] const at::Tensor* given(const Stack& stack, size_t position);

void require_same_sizes(const Stack& stack, size_t a, size_t b);

template <size_t kFirst, size_t kSecond>
void same_sizes(const Stack& stack) {
  require_same_sizes(stack, kFirst, kSecond);
}

void require_sizes(const Stack& stack, size_t position, at::IntArrayRef sizes);

// A tensor that is left out does.
void require_expands(const Stack& stack, size_t position, at::IntArrayRef sizes);

// Kernels that walk memory from its first element to its last.
void require_contiguous(const Stack& stack, size_t position);

// Of what a kernel makes a view each: some 230 bytes that no grant counts.
constexpr int64_t kViewsMax = int64_t{1} << 20;
void require_views(const at::Tensor& tensor, int64_t dim);

// Every index in [0, end), or equal to exempt; on meta there are none to look at.
void require_indices(const at::Tensor& indices, int64_t end, int64_t exempt = 0);

}  // namespace djinn::exec
