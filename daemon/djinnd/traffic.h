// SPDX-License-Identifier: Apache-2.0

// Traffic: what went over the control sockets to one kind of peer, both ways. Loop's thread.
#pragma once

#include <cstdint>

namespace djinn::daemon {

struct Traffic {
  uint64_t received_messages = 0;
  uint64_t received_bytes = 0;
  uint64_t sent_messages = 0;
  uint64_t sent_bytes = 0;
};

}  // namespace djinn::daemon
