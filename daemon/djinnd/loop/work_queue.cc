// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/work_queue.h"

#include <limits>

namespace djinn::daemon {

WorkQueue::WorkQueue(Loop& loop, const char* name)
    : done_(loop), thread_(name, std::numeric_limits<size_t>::max()) {}

void WorkQueue::close(std::vector<Fd> held, std::function<void()> then) {
  run(
      [held = std::move(held)]() mutable {
        held.clear();
        return true;
      },
      [then = std::move(then)](bool /*closed*/) { then(); });
}

void WorkQueue::close(Fd held) {
  if (!held.valid()) return;
  std::vector<Fd> one;
  one.push_back(std::move(held));
  close(std::move(one), [] {});
}

}  // namespace djinn::daemon
