// SPDX-License-Identifier: Apache-2.0

// Runs of bytes.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "kernel/base/assert.h"

namespace djinn {

// Copies from to the beginning of to. They do not overlap; from.size() <= to.size(). (GCC 12 makes
// of std::ranges::copy between two spans a loop over single bytes.)
inline void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  DJINN_ASSERT(from.size() <= to.size());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace djinn
