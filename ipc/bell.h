// SPDX-License-Identifier: Apache-2.0

// Bells: how the two sides of session memory wake each other; when, says session_memory.h.
//
//   submission bell   an eventfd that the client rings. The worker watches it, and neither reads
//                     nor writes it.
//   completion bell   a pair of sockets: the worker has the end that rings, the client the listener
//
// Descriptors of one open file description share its flags: who has an eventfd can clear
// O_NONBLOCK and fill its counter, and then the other side's read or write sleeps for as long as
// that one likes. So nothing of ours reads or writes what a client has a descriptor of. A watch is
// edge-triggered: each ring is an event, nobody has to read the counter, and no number of rings
// fills it. README.md says why the listener is neither a pipe nor an epoll instance.
//
// Closing what a client has, too, may wait for the client: the kernel takes it out of every epoll
// instance that watches it. Whoever closes one last leaves that to a thread that may wait; djinnd
// does, since it has a session's bells for as long as a worker has them.
#pragma once

#include <cstdint>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::ipc {

// Errors: kLimitExceeded (descriptors), kOutOfMemory.
Result<Fd> make_submission_bell();
// The client's.
void ring_submission_bell(const Fd& bell);
// Adds the bell to an epoll instance; its events carry the key. A bell that was ever rung is an
// event at once. Errors: kOutOfMemory.
Status watch_submission_bell(const Fd& epoll, const Fd& bell, uint64_t key);
// Must be called before the bell is closed: while its client has a copy, closing ours ends no
// watch.
void unwatch_submission_bell(const Fd& epoll, const Fd& bell);

struct CompletionBell {
  Fd bell;      // for workers alone
  Fd listener;  // becomes readable when the bell is rung; nothing can be sent through it
};
// Errors: kLimitExceeded (descriptors), kOutOfMemory.
Result<CompletionBell> make_completion_bell();
// Rings it, and never waits. Rings beyond what its counter takes are lost, and the listener is
// readable anyhow.
void ring_completion_bell(const Fd& bell);
// The listener is not readable any more; rings beyond count may need another call.
void take_rings(const Fd& listener);

}  // namespace djinn::ipc
