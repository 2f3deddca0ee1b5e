// SPDX-License-Identifier: Apache-2.0

// On a simulated machine one thread does the work of all of djinnd's threads, when the seed says
// so. This takes the place of loop/background.cc and loop/user_thread.cc.
#include <utility>

#include "daemon/djinnd/loop/background.h"
#include "daemon/djinnd/loop/user_thread.h"
#include "daemon/djinnd/simulation/machine.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

using simulation::Machine;

// The simulated machine has one thread, so a part of djinnd that starts its own gets an error.
Result<std::thread> start_thread(const char* name, std::function<void()> /*work*/) {
  return Error{ErrorCode::kSystem, std::string("A simulated machine has no thread: ") + name};
}

Background::Background(const char* /*name*/, size_t backlog_max) : backlog_max_(backlog_max) {}

Background::~Background() {
  Machine::current().finish(state_.get());
}

bool Background::post(Work work) {
  if (backlog() < backlog_max_) {
    post_surely(std::move(work));
    return true;
  }
  ++lost_;
  return false;
}

void Background::post_surely(Work work) {
  DJINN_ASSERT(work != nullptr);
  Machine::current().post(state_.get(), std::move(work));
}

size_t Background::backlog() const {
  return Machine::current().backlog(state_.get());
}

Status UserThread::post(std::function<void()> work) {
  DJINN_ASSERT(work != nullptr);
  if (Machine::current().fault(200)) return Error{ErrorCode::kSystem, "No thread can be started."};
  Machine::current().post(this, [self = shared_from_this(), work = std::move(work)] { work(); });
  return {};
}

bool UserThread::lives() const {
  return Machine::current().backlog(this) > 0;
}

}  // namespace djinn::daemon
