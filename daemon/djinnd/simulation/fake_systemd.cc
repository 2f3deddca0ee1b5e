// SPDX-License-Identifier: Apache-2.0

// These hear what djinnd tells systemd on a simulated machine. They take the place of the functions
// of libsystemd that djinnd calls, and keep to its header.
#include <systemd/sd-daemon.h>

#include "daemon/djinnd/simulation/machine.h"
#include "kernel/base/assert.h"

using djinn::daemon::simulation::Machine;

extern "C" {

int sd_notify(int unset_environment, const char* state) {
  DJINN_ASSERT(unset_environment == 0);
  return Machine::current().systemd().hear(state, -1);
}

int sd_pid_notify_with_fds(pid_t /*pid*/, int unset_environment, const char* state, const int* fds,
                           unsigned count) {
  DJINN_ASSERT(unset_environment == 0 && count == 1);
  return Machine::current().systemd().hear(state, fds[0]);
}

}  // extern "C"
