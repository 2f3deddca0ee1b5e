// SPDX-License-Identifier: Apache-2.0

// DeferredClose: closes what clients sent, and their connections. A close may wait for ever, with
// SIGKILL too: for the client itself where it serves the file (FUSE), for a server that is gone. So
// the loop closes nothing of theirs; each user has a thread for it, while there is something to
// close.
//
//   SharedFd   a descriptor with several holders; the last to let go of it has it closed
//   waiting    descriptors of one user that are not closed yet
//
// invariant: nobody but the same user waits for a descriptor that does not close.
// Where no thread can be had, what there is to close waits until the next connection, of whomever,
// finds one.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "daemon/djinnd/loop/user_thread.h"
#include "kernel/base/fd.h"
#include "kernel/base/owner.h"

namespace djinn::daemon {

// Closes for one user. It outlives its DeferredClose: holders keep it.
class Closer : public std::enable_shared_from_this<Closer> {
 public:
  using Close = std::function<void(Fd)>;
  explicit Closer(Close close) : close_(std::move(close)) {}

  // Any thread; never waits.
  void close(Fd fd);
  // Closing as a function, which keeps this.
  [[nodiscard]] Close closing();
  // Null for none. The holders may be on any thread.
  SharedFd own(Fd fd);
  [[nodiscard]] size_t waiting() const;
  // Begins with what is left behind for want of a thread.
  void try_again();

 private:
  void start();
  void close_all();

  const Close close_;
  const std::shared_ptr<UserThread> thread_ = std::make_shared<UserThread>("closer");
  mutable std::mutex mutex_;
  std::deque<Fd> backlog_;
  size_t waiting_ = 0;  // with the one that the thread has
};

class DeferredClose {
 public:
  // close: of one descriptor, on the user's thread.
  explicit DeferredClose(Closer::Close close = [](Fd fd) { fd.reset(); })
      : close_(std::move(close)) {}

  // The closer of a user. Also has the others begin with what they could not.
  std::shared_ptr<Closer> of(Owner user);
  // How many descriptors of all users wait.
  [[nodiscard]] size_t waiting() const;

 private:
  void tend();

  Closer::Close close_;
  std::map<Owner, std::shared_ptr<Closer>> deferred_close_;
};

}  // namespace djinn::daemon
