// SPDX-License-Identifier: Apache-2.0

// Reach: the sessions of one program with one host.
#pragma once

#include "kernel/base/fd.h"
#include "libdjinn-client/host.h"

namespace djinn::reach {

// Serves the sessions whose sockets come through the door, until it is closed and they have ended,
// or the host is gone, which they are told.
void serve(Fd door, const client::Host& host);

}  // namespace djinn::reach
