// SPDX-License-Identifier: Apache-2.0

// wait_for(): how every call of this library waits: for djinnd's answers, for runs, for room, and
// for a djinnd that is to come back. So whoever interrupts a call ends it, whatever it waits for.
#pragma once

#include <poll.h>

#include <span>

#include "kernel/base/result.h"
#include "libdjinn-client/deadline.h"
#include "libdjinn-client/interrupt.h"

namespace djinn::client {

// What ends a wait with kCancelled. interrupt: nullptr: nothing does.
struct WaitEnds {
  Interrupt* interrupt = nullptr;
  const CancelPredicate* given_up = nullptr;  // nullptr, or empty: nobody is asked
};

// Waits until one of the entries is ready, as their revents say then; without entries, until it is
// ended. deadline: nullptr: there is none. Errors: kCancelled, kTimeout, kSystem.
Status wait_for(std::span<pollfd> entries, const WaitEnds& ends, const Deadline* deadline);

}  // namespace djinn::client
