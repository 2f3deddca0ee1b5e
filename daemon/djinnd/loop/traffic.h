// SPDX-License-Identifier: Apache-2.0

// Traffic: what went over control sockets to a peer, or to all of one kind, both ways. Loop's
// thread.
#pragma once

#include <cstdint>

namespace djinn::daemon {

struct Traffic {
  uint64_t received_messages = 0;
  uint64_t received_bytes = 0;
  uint64_t sent_messages = 0;
  uint64_t sent_bytes = 0;

  void note_received(uint64_t bytes) {
    ++received_messages;
    received_bytes += bytes;
  }
  void note_sent(uint64_t bytes) {
    ++sent_messages;
    sent_bytes += bytes;
  }
};

}  // namespace djinn::daemon
