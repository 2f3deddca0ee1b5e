// SPDX-License-Identifier: Apache-2.0

#include "kernel/gc/fault_points.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

namespace djinn::gc {

void FaultPoints::die() noexcept {
  // SIGKILL lets no handler, destructor or buffer act, so memory stays exactly as it is now.
  ::kill(::getpid(), SIGKILL);
  ::abort();
}

}  // namespace djinn::gc
