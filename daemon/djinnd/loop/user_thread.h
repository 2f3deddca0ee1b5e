// SPDX-License-Identifier: Apache-2.0

// UserThread: a thread of one user's own, for what may take long or for ever because of what that
// user sent. It is there while there is something to do, and a moment longer.
//
// invariant: nobody who posts ever waits.
//
// A thread that hangs is left behind, and ends with the process: it must touch nothing but what its
// work captured.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "kernel/base/result.h"

namespace djinn::daemon {

class UserThread : public std::enable_shared_from_this<UserThread> {
 public:
  // name: as for start_thread. nice: what the thread adds to djinnd's, for work that computes and
  // holds up nobody else.
  explicit UserThread(const char* name, int nice = 0) : name_(name), nice_(nice) {}

  // Any thread. Work is done in the order of its coming, and destroyed on the thread. Errors: those
  // of start_thread; then it is not done.
  Status post(std::function<void()> work);
  // Whether there is a thread.
  [[nodiscard]] bool lives() const;

 private:
  void run();

  const char* const name_;
  const int nice_;
  mutable std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> backlog_;
  bool running_ = false;  // there is a thread
};

}  // namespace djinn::daemon
