// SPDX-License-Identifier: Apache-2.0

// The row contract of what LibTorch computes element by element. Some of its kernels round single
// elements otherwise than vectors of them, and compute singly what fills no vectors: the end of a
// call, of a thread's share, or of each row where rows lie apart. So an element's bits would tell
// how many rows there are, and where it is among them. Here such elements are computed once more,
// in vectors.
#pragma once

#include <vector>

#include "kernel/exec/one_thread.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Whether a call's kernel is one of these. splits: the operator's. The tensors are there.
[[nodiscard]] bool rounds_apart(Splits splits, const std::vector<c10::IValue>& stack);

// Calls an operator whose results have an element for each of its operands', broadcast. Each gets
// the bits that vectors give it. Only what fills none costs anything: a second call, of 64
// elements where the operands lie in memory as one row, and else of copies of all. The host's;
// stack as for callBoxed(). Throws what the operator throws.
void call_in_vectors(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

}  // namespace djinn::exec
