// SPDX-License-Identifier: Apache-2.0

// A message as a peer that does not use our library may send it.
#pragma once

#include <string.h>
#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <vector>

namespace djinn::ipc::testing {

// Whatever bytes and fds break: nothing is checked. What sendmsg() gives; fds stay the caller's,
// and are at least one.
inline ssize_t send_raw(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(fds.size_bytes()));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

}  // namespace djinn::ipc::testing
