// SPDX-License-Identifier: Apache-2.0

// LeaseSocket: a connection to djinnd that is this process's alone. The socket is the lease: it
// must not live on through the copy that the child of a fork gets. In every child, before fork()
// returns there, its number names a socket that is connected to nobody.
//
// Thread-safe but for one object. Children that never ran fork()'s handlers (vfork, a bare clone)
// keep their copy until they exec.
#pragma once

#include <string_view>
#include <utility>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "libdjinn-client/deadline.h"

namespace djinn::client {

class LeaseSocket {
 public:
  // Waits for seconds where many connect at once. deadline may be null. Errors: those of
  // ipc::connect_unix(), kCancelled.
  static Result<LeaseSocket> connect(std::string_view path, const Deadline* deadline = nullptr);
  // Both ends of a connection, for a process that gets one of them.
  struct Pair;
  static Result<Pair> make_pair();
  ~LeaseSocket() { close(); }
  LeaseSocket(LeaseSocket&&) noexcept = default;
  LeaseSocket& operator=(LeaseSocket&& other) noexcept {
    close();
    fd_ = std::move(other.fd_);
    return *this;
  }

  [[nodiscard]] int get() const noexcept { return fd_.get(); }

 private:
  explicit LeaseSocket(Fd fd) noexcept : fd_(std::move(fd)) {}
  void close() noexcept;

  Fd fd_;
};

struct LeaseSocket::Pair {
  LeaseSocket ours;
  LeaseSocket theirs;
};

}  // namespace djinn::client
