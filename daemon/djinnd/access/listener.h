// SPDX-License-Identifier: Apache-2.0

// Listener: the socket that clients connect to, and the directory it lies in; or the one beside it
// that djinn-gate connects to, and nobody else may.
//
// One djinnd serves a directory: it holds a lock in it, and takes none where somebody listens. A
// socket file that it made goes when this does.
//
//   reserve   descriptors that are open for nothing: when no other is left, one is given up for
//             each client who is to hear so
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/djinnd/loop/loop.h"
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
  struct Events {
    std::function<void(Fd, const ipc::PeerCredentials&)> connected;
    // It was taken with a descriptor of the reserve, and cannot stay.
    std::function<void(Fd, const ipc::PeerCredentials&)> too_many;
  };

  // Makes the socket for clients. Errors: kBusy when another djinnd serves the directory, or
  // anybody listens there; kNotFound for an unknown group; kPermissionDenied, kSystem.
  static Result<std::unique_ptr<Listener>> open(Loop& loop, const Place& place, Events events);
  // Makes gate.sock in the directory, which this djinnd serves: its owner alone may connect.
  // Errors: kBusy when anybody listens there; kInvalidArgument, kSystem.
  static Result<std::unique_ptr<Listener>> open_for_gates(Loop& loop,
                                                          const std::string& runtime_dir,
                                                          Events events);
  // Takes clients from a socket that listens already and whose file is somebody else's.
  static std::unique_ptr<Listener> adopt(Loop& loop, Fd socket, Events events);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Of the socket that was made, from /; empty for one that was adopted.
  [[nodiscard]] std::string path() const;

 private:
  Listener(Loop& loop, std::string path, Fd lock, Fd socket, Events events);
  void accept_some();
  void fill_reserve();
  void pause();
  [[nodiscard]] bool is_ours() const;

  struct File {
    dev_t device = 0;
    ino_t inode = 0;
  };
  std::string path_;
  File file_;  // at the path, as it was made
  Fd lock_;
  Fd socket_;
  Events events_;
  std::vector<Fd> reserve_;
  Poll poll_;
  Timer pause_;  // after running out of the reserve, too
  bool paused_told_ = false;
};

}  // namespace djinn::daemon
