// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/user_queues.h"

namespace djinn::daemon {

void UserQueues::add(uid_t user, Piece piece) {
  if (!queues_.contains(user)) forget_idle();
  std::deque<Piece>& pieces = queues_[user].pieces;
  pieces.push_back(std::move(piece));
  if (pieces.size() == 1) begin_next(user);
}

void UserQueues::begin_next(uid_t user) {
  Queue& queue = queues_.at(user);
  while (!queue.pieces.empty()) {
    const Status begun =
        queue.thread->post([this, user, work = queue.pieces.front().work, to = done_.sender()] {
          to.send([this, user, then = work()] {
            then();
            ended(user);
          });
        });
    if (begun) return;
    const Piece refused = std::move(queue.pieces.front());
    queue.pieces.pop_front();
    refused.refuse(begun.error());
  }
}

void UserQueues::ended(uid_t user) {
  queues_.at(user).pieces.pop_front();
  begin_next(user);
}

// A queue is kept for as long as its thread, which more work would find running.
void UserQueues::forget_idle() {
  std::erase_if(queues_, [](const auto& entry) {
    return entry.second.pieces.empty() && !entry.second.thread->lives();
  });
}

}  // namespace djinn::daemon
