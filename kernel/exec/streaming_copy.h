// SPDX-License-Identifier: Apache-2.0

// Large copies that do not empty the caches of what is computed next.
#pragma once

#include <span>

#include "kernel/executor/executor.h"

namespace djinn::exec {

// Copies ranges of host memory, with the calling thread's LibTorch threads. Of each range a thread
// copies the part that is its own in an operator on the whole range: what it has read is then where
// it is needed. The threads meet once, and not after each range: that takes long where one of them
// waits for a processor. Ranges do not overlap.
void copy_past_caches(std::span<const DeviceCopy> copies);

}  // namespace djinn::exec
