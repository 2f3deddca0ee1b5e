// SPDX-License-Identifier: Apache-2.0

// On a simulated machine djinnd's log goes to the record of what happened. This takes the place of
// loop/log.cc.
#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/simulation/machine.h"

namespace djinn::daemon {

void log_line(const std::string& text) noexcept {
  if (auto* const machine = simulation::Machine::current_or_null()) {
    machine->tell_line("djinnd: " + text);
  }
}

uint64_t log_lines_lost() noexcept {
  return 0;
}

}  // namespace djinn::daemon
