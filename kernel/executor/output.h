// SPDX-License-Identifier: Apache-2.0

// What leaves a run, from memory that this process can read: what a lane of the host does.
#pragma once

#include <cstddef>
#include <span>

#include "kernel/base/result.h"
#include "kernel/executor/executor.h"

namespace djinn::exec {

// Copies the elements of a view, contiguous and in order, to out, whose size must be exactly
// element count * element size. Never reads the gaps between elements. Errors: kOutOfRange for a
// view that leaves its storage, kInvalidArgument for another size.
Status copy_elements(const OutputView& view, std::span<std::byte> out);

}  // namespace djinn::exec
