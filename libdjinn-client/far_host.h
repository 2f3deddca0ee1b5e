// SPDX-License-Identifier: Apache-2.0

// Sessions with a djinnd on another machine. Nothing of the network is in the program: a process of
// its own, djinn-reach, speaks to that machine, one for each host that this process uses, and
// stands for djinnd at the other end of the session's socket. It ends with the program, and when
// the host is lost: the next session starts another.
//
//   door   the socket that djinn-reach gets the ends of new sessions by
#pragma once

#include "libdjinn-client/host.h"
#include "libdjinn-client/lease_socket.h"

namespace djinn::client {

// A control socket to the djinnd of a far host. It does not wait for the network. Thread-safe.
// Errors: kNotFound where djinn-reach is not installed, kSystem, kLimitExceeded (descriptors).
Result<LeaseSocket> connect_far(const Host& host);

}  // namespace djinn::client
