// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/simulation/door.h"

#include <sys/eventfd.h>

#include <utility>

namespace djinn::daemon::simulation {

Result<Fd> Door::connect(ipc::PeerCredentials peer) {
  if (!bell_.valid()) return Error{ErrorCode::kDisconnected, "Nobody listens."};
  DJINN_TRY(ipc::SocketPair pair, ipc::make_socket_pair());
  waiting_.push_back({std::move(pair.left), std::move(peer)});
  ::eventfd_write(bell_.get(), 1);
  return std::move(pair.right);
}

std::optional<Door::Connection> Door::take() {
  eventfd_t rung = 0;
  if (bell_.valid()) ::eventfd_read(bell_.get(), &rung);
  if (waiting_.empty()) return std::nullopt;
  Connection first = std::move(waiting_.front());
  waiting_.pop_front();
  return first;
}

}  // namespace djinn::daemon::simulation
