// SPDX-License-Identifier: Apache-2.0

// A large copy that does not empty the caches of what is computed next.
#pragma once

#include <cstddef>
#include <span>

namespace djinn::exec {

// Copies from to the beginning of to, with the calling thread's LibTorch threads. They do not
// overlap; from.size() <= to.size().
void copy_past_caches(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace djinn::exec
