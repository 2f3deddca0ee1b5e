// SPDX-License-Identifier: Apache-2.0

// This memfd_create() takes the place of libc's on a simulated machine: now and then it fails for
// what djinnd itself makes.
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "daemon/djinnd/simulation/machine.h"

namespace djinn::daemon::simulation {
namespace {

// These are the memfds that djinnd makes. Extents fail by themselves (fake_extents.cc), and those
// of clients and children are not djinnd's.
constexpr std::string_view kOfDjinnd[] = {"djinn-session", "djinn-state", "djinn-payload",
                                          "djinn-record"};
constexpr int kErrors[] = {EMFILE, ENFILE, ENOMEM};

// Gives the errno of a failure, or 0.
int failure_of(std::string_view name) {
  Machine* const machine = Machine::current_or_null();
  if (machine == nullptr || std::ranges::find(kOfDjinnd, name) == std::end(kOfDjinnd)) return 0;
  if (!machine->fault(25)) return 0;
  machine->tell("there is no memory for {}", name);
  return kErrors[machine->below(std::size(kErrors))];
}

}  // namespace
}  // namespace djinn::daemon::simulation

extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (const int error = djinn::daemon::simulation::failure_of(name); error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}
