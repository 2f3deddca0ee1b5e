// SPDX-License-Identifier: Apache-2.0

// Channel: a child's end of its socket to djinnd, one message a datagram, blocking.
//
// send() may be called from any thread; receive() from one.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>

#include "ipc/socket.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::child {

class Channel {
 public:
  explicit Channel(Fd socket) : socket_(std::move(socket)) {}

  // Waits while djinnd is behind. fds stay the caller's. Errors: kDisconnected when djinnd is gone.
  Status send(std::span<const std::byte> bytes, std::span<const int> fds = {});

  // Waits for the next message. Errors: kDisconnected at the end of the stream.
  Result<ipc::Datagram> receive();

  [[nodiscard]] const Fd& socket() const { return socket_; }

 private:
  Fd socket_;
  std::mutex sending_;
};

}  // namespace djinn::child
