// SPDX-License-Identifier: Apache-2.0

// This is how children start and end on a simulated machine. It takes the place of
// workers/spawner.cc and loop/process.cc.
#include <utility>

#include "daemon/djinnd/loop/process.h"
#include "daemon/djinnd/simulation/machine.h"
#include "daemon/djinnd/workers/spawner.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

using simulation::Machine;

Spawner::Spawner() = default;

Spawner::~Spawner() = default;

Result<pid_t> Spawner::start(const Program& program, const Fd& channel) {
  DJINN_ASSERT(channel.valid() && !program.arguments.empty());
  DJINN_TRY(Fd end, channel.duplicate());
  return Machine::current().processes().start(program.path, std::move(end));
}

Result<Fd> open_pidfd(pid_t child) {
  return Machine::current().processes().open_pidfd(child);
}

int reap(pid_t child) {
  return Machine::current().processes().reap(child);
}

void send_signal(pid_t child, int signal) {
  Machine::current().processes().send_signal(child, signal);
}

uint64_t cpu_ns_of(pid_t child) {
  return Machine::current().processes().cpu_ns_of(child);
}

}  // namespace djinn::daemon
