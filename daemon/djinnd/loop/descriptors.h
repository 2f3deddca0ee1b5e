// SPDX-License-Identifier: Apache-2.0

// Descriptors: the last few that djinnd may open are not for clients: without them it could answer
// nobody, start no worker, and hand a session to none. It also says which of clients' descriptors
// may be kept.
#pragma once

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// Kept from clients, unless djinnd may have so few that an eighth of them is less. A message brings
// up to 253 before anybody can refuse it (SCM_MAX_FD): those that found no number the kernel would
// close on the loop's thread, which may take for ever (deferred_close.h).
inline constexpr int kDescriptorsKept = 64 + 253;

// A session takes so many while it does nothing: its socket, its memory, two ends of each bell.
inline constexpr int kDescriptorsOfSession = 8;

// What the kernel has refused djinnd, for who asked for it: with what they can do next.
[[nodiscard]] Error for_client(const Error& of_kernel);
template <typename T>
[[nodiscard]] Result<T> for_client(Result<T> made) {
  return made.ok() ? std::move(made) : Result<T>(for_client(made.error()));
}

// The error for a client for whom there is none.
Error out_of_descriptors();
// Whether a descriptor that was opened this moment for a client leaves djinnd enough: the kernel
// gives the lowest free number. `spoken_for`: how many more will be opened for who came before.
// Errors: kLimitExceeded.
Status check_descriptors_left(const Fd& newest, size_t spoken_for = 0);

// Whether keeping it may keep sockets open: it is one, or may have some inside (an io_uring). Asks
// no file system. A client's own socket, kept here, would keep its session when the client is gone.
bool may_hold_sockets(const Fd& fd);

}  // namespace djinn::daemon
