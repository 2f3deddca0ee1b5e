// SPDX-License-Identifier: Apache-2.0

// Door: where simulated clients connect, as whichever user they are.
#pragma once

#include <deque>
#include <optional>

#include "ipc/socket.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon::simulation {

class Door {
 public:
  struct Connection {
    Fd socket;
    ipc::PeerCredentials peer;
  };

  // bell: becomes readable when somebody has connected.
  void open(Fd bell) { bell_ = std::move(bell); }
  void close() {
    bell_.reset();
    waiting_.clear();
  }
  // The client's end. Errors: kDisconnected where nobody listens; those of make_socket_pair.
  Result<Fd> connect(ipc::PeerCredentials peer);
  // Nothing when nobody waits.
  std::optional<Connection> take();

 private:
  Fd bell_;
  std::deque<Connection> waiting_;
};

}  // namespace djinn::daemon::simulation
