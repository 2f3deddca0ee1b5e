// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/user_queues.h"

#include "kernel/base/assert.h"

namespace djinn::daemon {

void UserQueues::add(Owner user, Piece piece) {
  if (!queues_.contains(user)) forget_idle();
  Queue& queue = queues_[user];
  DJINN_ASSERT(queue.busy || queue.waiting.empty());
  queue.waiting.push_back(std::move(piece));
  if (!queue.busy) begin_next(user);
}

// A caller that is refused may post more work at once. That work waits, because the queue stays
// busy until nothing waits any more.
void UserQueues::begin_next(Owner user) {
  Queue& queue = queues_.at(user);
  queue.busy = true;
  while (!queue.waiting.empty()) {
    const Piece next = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    if (!next.is_wanted()) continue;
    const Status begun = queue.thread->post([this, user, work = next.work, to = done_.sender()] {
      to.send([this, user, then = work()] {
        then();
        begin_next(user);
      });
    });
    if (begun) return;
    next.refuse(begun.error());
  }
  queue.busy = false;
}

// A queue is kept as long as its thread lives, because new work would go to that thread.
void UserQueues::forget_idle() {
  std::erase_if(queues_, [](const auto& entry) {
    DJINN_ASSERT(entry.second.busy || entry.second.waiting.empty());
    return !entry.second.busy && !entry.second.thread->lives();
  });
}

}  // namespace djinn::daemon
