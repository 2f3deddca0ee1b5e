// SPDX-License-Identifier: Apache-2.0

// Listener: the socket that clients connect to, and the directory it lies in.
//
// One djinnd serves a directory: it holds a lock in it. A socket file that it made goes when this
// does.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "daemon/djinnd/loop.h"
#include "ipc/socket.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Listener {
 public:
  struct Place {
    std::string runtime_dir;
    std::string socket_group;  // empty: user mode, only the owner may connect
  };
  using Connected = std::function<void(Fd, const ipc::PeerCredentials&)>;

  // Makes the socket. Errors: kBusy when another djinnd serves the directory; kNotFound for an
  // unknown group; kPermissionDenied, kSystem.
  static Result<std::unique_ptr<Listener>> open(Loop& loop, const Place& place,
                                                Connected connected);
  // Takes clients from a socket that listens already and whose file is somebody else's.
  static std::unique_ptr<Listener> adopt(Loop& loop, Fd socket, Connected connected);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  Listener(Loop& loop, std::string path, Fd lock, Fd socket, Connected connected);
  void accept_some();

  std::string path_;
  Fd lock_;
  Fd socket_;
  Connected connected_;
  Poll poll_;
  Timer pause_;  // after running out of descriptors
};

}  // namespace djinn::daemon
