// SPDX-License-Identifier: Apache-2.0

// Datagrams: a control socket (ipc/socket.h) on KJ's loop.
#pragma once

#include <kj/async-unix.h>
#include <kj/async.h>

#include <cstddef>
#include <vector>

#include "ipc/socket.h"

namespace djinn::rpc {

class Datagrams {
 public:
  // socket: non-blocking.
  Datagrams(kj::UnixEventPort& port, Fd socket);

  // The next one; nothing when the peer has closed. One call at a time. Throws what
  // receive_datagram() fails with.
  kj::Promise<kj::Maybe<ipc::Datagram>> receive();
  // Sends them in the order of the calls; the promise ends when this one is on its way. Throws what
  // send_datagram() fails with.
  kj::Promise<void> send(std::vector<std::byte> bytes, std::vector<Fd> fds = {});
  // Sends it now, if there is room, and whatever was to be sent before: nothing follows.
  void send_last(const std::vector<std::byte>& bytes);
  // The next one, if it is there. Throws as receive() does, also where the peer has closed.
  kj::Maybe<ipc::Datagram> receive_now();
  // Ends when the peer has closed its end, whatever of it was not received yet.
  kj::Promise<void> closed() { return observer_.whenWriteDisconnected(); }

 private:
  kj::Promise<void> send_now(std::vector<std::byte> bytes, std::vector<Fd> fds);

  Fd socket_;
  kj::UnixEventPort::FdObserver observer_;  // goes before the socket does
  kj::Promise<void> last_ = kj::READY_NOW;  // ends when all that was given so far is on its way
};

}  // namespace djinn::rpc
