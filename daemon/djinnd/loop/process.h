// SPDX-License-Identifier: Apache-2.0

// What the kernel is asked of djinnd's children once they run: a seam, which a simulator takes the
// place of (simulation/README.md). Spawner starts them.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// A descriptor of the child that becomes readable when it has ended. Errors: kSystem and its kin.
Result<Fd> open_pidfd(pid_t child);
// Waits until the child has ended, and gives waitpid's status. Once for each child.
int reap(pid_t child);
// The child was not reaped.
void send_signal(pid_t child, int signal);
// What the child's threads have computed so far; 0 where the kernel does not say.
[[nodiscard]] uint64_t cpu_ns_of(pid_t child);

}  // namespace djinn::daemon
