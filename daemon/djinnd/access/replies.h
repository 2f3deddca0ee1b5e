// SPDX-License-Identifier: Apache-2.0

// Replies: the seam between what a request does and the connection that it came on.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ipc/messages.h"
#include "kernel/base/assert.h"
#include "kernel/base/ids.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// A request that waits for its answer.
struct Waiter {
  SessionId session;
  uint32_t number = 0;
};

class Replies {
 public:
  virtual ~Replies() = default;
  // Nothing happens if the session is gone meanwhile. fds stay the caller's.
  virtual void reply(const Waiter& waiter, ipc::DaemonReply reply,
                     std::span<const int> fds = {}) = 0;
  // Owes an answer where many may have waited for one thing: makes and sends it in a turn of the
  // waiter's user, and not before the client has read what it was answered earlier. Until then
  // nothing is kept of the answer but how to make it.
  virtual void owe(const Waiter& waiter, std::function<ipc::DaemonReply()> make) = 0;
  // The same to all who waited for one thing.
  void owe_each(const std::vector<Waiter>& waiters, const decltype(ipc::DaemonReply::body)& body) {
    for (const Waiter& waiter : waiters) {
      owe(waiter, [number = waiter.number, body]() -> ipc::DaemonReply { return {number, body}; });
    }
  }
  void refuse_each(const std::vector<Waiter>& waiters, const Error& error) {
    DJINN_ASSERT(error.code != ErrorCode::kOk);
    owe_each(waiters, ipc::Failed{error.code, error.message});
  }
  void refuse(const Waiter& waiter, const Error& error) {
    DJINN_ASSERT(error.code != ErrorCode::kOk);
    reply(waiter, {waiter.number, ipc::Failed{error.code, error.message}});
  }
  void done(const Waiter& waiter) { reply(waiter, {waiter.number, ipc::Done{}}); }
};

}  // namespace djinn::daemon
