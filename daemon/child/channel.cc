// SPDX-License-Identifier: Apache-2.0

#include "daemon/child/channel.h"

#include <errno.h>
#include <poll.h>

#include <optional>

namespace djinn::child {
namespace {

Status wait_for(int fd, short events) {
  pollfd waiting{fd, events, 0};
  while (::poll(&waiting, 1, -1) < 0) {
    if (errno != EINTR) return system_error("wait for djinnd", errno);
  }
  return {};
}

}  // namespace

Status Channel::send(std::span<const std::byte> bytes, std::span<const int> fds) {
  const std::lock_guard lock(sending_);
  for (;;) {
    Status sent = ipc::send_datagram(socket_.get(), bytes, fds);
    if (sent || sent.error().code != ErrorCode::kBusy) return sent;
    DJINN_CHECK(wait_for(socket_.get(), POLLOUT));
  }
}

Result<ipc::Datagram> Channel::receive() {
  for (;;) {
    DJINN_TRY(std::optional<ipc::Datagram> next, ipc::receive_datagram(socket_.get()));
    if (next) return std::move(*next);
    DJINN_CHECK(wait_for(socket_.get(), POLLIN));
  }
}

}  // namespace djinn::child
