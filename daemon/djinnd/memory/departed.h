// SPDX-License-Identifier: Apache-2.0

// Departed: the memory that sessions which have ended still share with their clients. One that was
// ended may still be read by its client, so it stays as it is, and granted, until the client has
// hung up. Then its pages are freed, even where the client keeps it open or mapped; what it writes
// there afterwards is memory of its own.
//
//   keep         from the end of a session on
//   is_leaving   whether the memory comes free by itself: the client has hung up, and nothing
//                holds its pages
//
// invariant: a page that djinnd or a worker wrote for a session is granted to it.
// Freeing pages waits for whoever writes to the memory through its descriptor, for ever if that
// writer likes: each user's are freed by the user's own thread (user_queues.h), and nobody who
// needs memory waits for those that take long.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "daemon/djinnd/access/user_queues.h"
#include "daemon/djinnd/loop/channel.h"
#include "daemon/djinnd/loop/loop.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

class Departed {
 public:
  // work: outlives this. stays: called where memory that was leaving is not any more.
  Departed(Loop& loop, UserQueues& work, std::function<void()> stays);

  // client: of the session, dismissed. bytes: of the memory. freed: called once, on the loop, when
  // its pages are free.
  void keep(SessionId id, Owner user, std::unique_ptr<Channel> client, SharedFd memory,
            uint64_t bytes, std::function<void()> freed);
  [[nodiscard]] bool is_leaving(SessionId id) const;

 private:
  struct Session {
    Owner user;
    std::unique_ptr<Channel> client;  // null: it has hung up
    SharedFd memory;
    uint64_t bytes;
    std::function<void()> freed;
    bool again = false;  // its user had no thread
    int looks = 0;       // since the client hung up
  };
  void hung_up(SessionId id);
  void free(SessionId id);
  void tried(SessionId id, const Status& freed);
  void look();

  Loop& loop_;
  UserQueues& work_;
  std::function<void()> stays_;
  std::map<SessionId, Session> sessions_;
  Timer look_timer_;
};

}  // namespace djinn::daemon
