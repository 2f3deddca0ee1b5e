// SPDX-License-Identifier: Apache-2.0

// Guards stand in the dispatcher: whatever calls a guarded operator while a GuardedCalls lives, be
// it a graph's node or a composite operator deep inside of one, on the CPU or on meta, its guard
// sees the arguments first, what its kernel takes beside its results is held of the lane's heap
// meanwhile (scratch.h), and threads that would race are not used (one_thread.h). Operators without
// any of these pay nothing, for the dispatcher skips the key.
//
// What a kernel calls past the dispatcher (at::native::) is not seen: such a kernel needs a row of
// its own.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// A key that no device, feature or mode of PyTorch uses.
inline constexpr c10::DispatchKey kGuardKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Once a process; later calls do nothing. Part of initialise() and of admission, and of the
// PyTorch device's start.
void register_guards();

// Guards the calls of this thread.
class GuardedCalls {
 public:
  GuardedCalls() : included_(kGuardKey) {}

 private:
  c10::impl::IncludeDispatchKeyGuard included_;
};

}  // namespace djinn::exec
