// SPDX-License-Identifier: Apache-2.0

// Visitor: who has connected, and by which of djinnd's sockets.
#pragma once

#include <cstdint>

#include "ipc/socket.h"

namespace djinn::daemon {

enum class Entrance : uint8_t {
  kClients,  // a local user's, whom the kernel names
  kGates,    // djinn-gate's: for a principal, whom it names in Hello
};

struct Visitor {
  ipc::PeerCredentials peer;
  Entrance entrance = Entrance::kClients;
};

}  // namespace djinn::daemon
