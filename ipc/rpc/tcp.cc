// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "ipc/rpc/heartbeat.h"

namespace djinn::rpc {

void set_tcp_options(kj::AsyncIoStream& stream) {
  constexpr int kOn = 1;
  constexpr auto kUnacknowledgedMs = static_cast<int>(kSilentForNear / kj::MILLISECONDS);
  stream.setsockopt(IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
  stream.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs, sizeof kUnacknowledgedMs);
}

}  // namespace djinn::rpc
