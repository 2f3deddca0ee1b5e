// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/stragglers.h"

#include <poll.h>

#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/loop/process.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr int kPatienceMs = 100;

}  // namespace

Stragglers::~Stragglers() {
  for (const One& one : all_) {
    pollfd entry{one.pidfd.get(), POLLIN, 0};
    if (::poll(&entry, 1, kPatienceMs) == 1) {
      reap(one.pid);
    } else {
      log("process {} is left behind: it is killed, and has not ended yet", one.pid);
    }
  }
}

void Stragglers::take(pid_t pid, Fd pidfd) {
  DJINN_ASSERT(pid > 1 && pidfd.valid());
  const auto one = all_.insert(all_.end(), One{pid, std::move(pidfd), {}});
  one->exit.emplace(loop_, one->pidfd.get(), [this, one] {
    reap(one->pid);
    one->exit->pause();
    auto ended = std::make_unique<std::list<One>>();
    ended->splice(ended->end(), all_, one);
    loop_.dispose(std::move(ended));
  });
  one->exit->watch_readable();
}

}  // namespace djinn::daemon
