// SPDX-License-Identifier: Apache-2.0

// On a simulated machine clients connect to its door. This takes the place of access/listener.cc.
#include <sys/eventfd.h>

#include <utility>

#include "daemon/djinnd/access/listener.h"
#include "daemon/djinnd/simulation/machine.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

using simulation::Machine;

Result<std::unique_ptr<Listener>> Listener::open(Loop& loop, const Place& /*place*/,
                                                 Events events) {
  Fd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return std::unique_ptr<Listener>(new Listener(loop, {}, {}, std::move(bell), std::move(events)));
}

// A simulated machine has one door, and no gate.
Result<std::unique_ptr<Listener>> Listener::open_for_gates(Loop& /*loop*/,
                                                           const std::string& /*runtime_dir*/,
                                                           Events /*events*/) {
  return Error{ErrorCode::kUnsupported, "There are no gates here."};
}

std::unique_ptr<Listener> Listener::adopt(Loop& loop, Fd socket, Events events) {
  return std::unique_ptr<Listener>(
      new Listener(loop, {}, {}, std::move(socket), std::move(events)));
}

Listener::Listener(Loop& loop, std::string path, Fd lock, Fd socket, Events events)
    : path_(std::move(path)),
      lock_(std::move(lock)),
      socket_(std::move(socket)),
      events_(std::move(events)),
      poll_(loop, socket_.get(), [this] { accept_some(); }),
      pause_(loop, [this] { poll_.watch_readable(); }) {
  DJINN_ASSERT(socket_.valid() && events_.connected && events_.too_many);
  auto bell = socket_.duplicate();
  DJINN_ASSERT(bell.ok());
  Machine::current().door().open(*std::move(bell));
  poll_.watch_readable();
}

Listener::~Listener() {
  Machine::current().door().close();
}

std::string Listener::path() const {
  return path_;
}

void Listener::accept_some() {
  Machine& machine = Machine::current();
  while (auto next = machine.door().take()) {
    const auto& taken = machine.fault(50) ? events_.too_many : events_.connected;
    taken(std::move(next->socket), next->peer);
  }
}

}  // namespace djinn::daemon
