// SPDX-License-Identifier: Apache-2.0

// Stragglers: children that were killed and that nobody waits for any more. A child that closes
// a file may wait for its file system, SIGKILL or not (deferred_close.h), and on a busy machine
// each takes its time.
//
// invariant: each is reaped when it ends, and the loop never waits for one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <list>
#include <optional>

#include "daemon/djinnd/loop/loop.h"
#include "kernel/base/fd.h"

namespace djinn::daemon {

class Stragglers {
 public:
  // loop: outlives this.
  explicit Stragglers(Loop& loop) : loop_(loop) {}
  // Waits for those that are left; but no longer than a moment for each.
  ~Stragglers();
  Stragglers(const Stragglers&) = delete;
  Stragglers& operator=(const Stragglers&) = delete;

  // Loop's thread. A child of this process that was not reaped, and its pidfd.
  void take(pid_t pid, Fd pidfd);
  [[nodiscard]] size_t count() const { return all_.size(); }

 private:
  struct One {
    pid_t pid;
    Fd pidfd;
    std::optional<Poll> exit;
  };

  Loop& loop_;
  std::list<One> all_;
};

}  // namespace djinn::daemon
