// SPDX-License-Identifier: Apache-2.0

#include "ipc/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>

#include "kernel/base/assert.h"

namespace djinn::ipc {
namespace {

// The kernel passes at most this many descriptors in one message (SCM_MAX_FD). If the buffer were
// smaller, the kernel would close the rest itself, on the thread that receives.
constexpr size_t kDescriptorsMax = 253;
static_assert(limits::kControlDescriptors <= kDescriptorsMax);

struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> bytes;
};

bool would_block(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK;
}
bool peer_is_gone(int error_number) {
  return error_number == EPIPE || error_number == ECONNRESET || error_number == ENOTCONN ||
         error_number == ECONNREFUSED;
}

Error disconnected() {
  return {ErrorCode::kDisconnected, "The peer closed the control socket."};
}

Error too_large() {
  return {ErrorCode::kProtocolViolation,
          "A control message is larger than 64 KiB or has more than 64 descriptors."};
}

Error out_of_descriptors() {
  return {
      ErrorCode::kLimitExceeded,
      "The descriptors of a control message could not be taken: the receiver has too many open. "
      "Close sessions or models, then repeat."};
}

Status check_sizes(std::span<const std::byte> bytes, std::span<const int> fds) {
  if (bytes.empty()) return Error{ErrorCode::kInvalidArgument, "A control message has no bytes."};
  if (bytes.size() > limits::kControlMessageBytes || fds.size() > limits::kControlDescriptors) {
    return Error{ErrorCode::kLimitExceeded,
                 "A control message is larger than 64 KiB or has more than 64 descriptors."};
  }
  return {};
}

void attach(msghdr& message, ControlBuffer& control, std::span<const int> fds) {
  DJINN_ASSERT(fds.size() <= kDescriptorsMax);
  if (fds.empty()) return;
  control.bytes.fill(0);
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
}

// Takes over every descriptor that the kernel installed, from whatever number of headers.
std::vector<Fd> detach(msghdr& message) {
  std::vector<Fd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

ssize_t receive_retrying(int fd, msghdr& message) {
  ssize_t received = 0;
  do {
    received = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  return received;
}

Error connect_error(int error_number) {
  if (error_number == ENOENT || error_number == ECONNREFUSED) {
    return {ErrorCode::kNotFound, "Nobody listens at the socket."};
  }
  if (would_block(error_number) || error_number == EINTR) {
    return {ErrorCode::kBusy, "The socket's queue of connections is full. Try again."};
  }
  return system_error("connect to the socket", error_number);
}

Status make_non_blocking(const Fd& socket) {
  if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) == 0) return {};
  return system_error("make a socket non-blocking", errno);
}

}  // namespace

Status send_datagram(int fd, std::span<const std::byte> bytes, std::span<const int> fds) {
  DJINN_CHECK(check_sizes(bytes, fds));
  ControlBuffer control;
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  attach(message, control, fds);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};  // a SEQPACKET goes whole or not at all
  if (would_block(errno)) {
    return Error{ErrorCode::kBusy, "The control socket is full. Send again when it is writable."};
  }
  if (peer_is_gone(errno)) return disconnected();
  return system_error("send a control message", errno);
}

Result<std::optional<Datagram>> receive_datagram(int fd, std::vector<Fd>* of_refused) {
  std::array<std::byte, limits::kControlMessageBytes> bytes;  // not cleared: only what came is read
  ControlBuffer control;
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t received = receive_retrying(fd, message);
  if (received < 0) {
    if (would_block(errno)) return std::optional<Datagram>();
    if (peer_is_gone(errno)) return disconnected();
    return system_error("receive a control message", errno);
  }
  std::vector<Fd> fds = detach(message);
  const bool exceeds =
      (message.msg_flags & MSG_TRUNC) != 0 || fds.size() > limits::kControlDescriptors;
  // The message had room for all descriptors, so the process had none left.
  const bool lacks = (message.msg_flags & MSG_CTRUNC) != 0;
  if (exceeds || lacks || received == 0) {
    if (of_refused != nullptr) *of_refused = std::move(fds);
    return exceeds ? too_large() : lacks ? out_of_descriptors() : disconnected();
  }
  return std::optional(Datagram{{bytes.data(), bytes.data() + received}, std::move(fds)});
}

Result<Fd> make_unix_socket() {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return system_error("make a socket", errno);
  return fd;
}

Status connect_unix(const Fd& socket, std::string_view path, uint32_t wait_ms) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path || path.find('\0') != path.npos) {
    return Error{ErrorCode::kInvalidArgument, "A socket's path has 1 to 107 bytes."};
  }
  memcpy(address.sun_path, path.data(), path.size());
  const timeval wait{wait_ms / 1000, static_cast<suseconds_t>(wait_ms % 1000) * 1000};
  const bool waits = wait_ms > 0;
  if (waits && ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) != 0) {
    return system_error("limit the wait for a connection", errno);
  }
  if (!waits) DJINN_CHECK(make_non_blocking(socket));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return connect_error(errno);
  }
  return make_non_blocking(socket);
}

Result<Fd> connect_unix(std::string_view path) {
  DJINN_TRY(Fd fd, make_unix_socket());
  DJINN_CHECK(connect_unix(fd, path, 0));
  return fd;
}

Result<SocketPair> make_socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) {
    return system_error("make a pair of sockets", errno);
  }
  return SocketPair{Fd(fds[0]), Fd(fds[1])};
}

// If the buffer is too small, the kernel says how much room it needs.
static Result<std::vector<gid_t>> supplementary_groups(int fd) {
  socklen_t bytes = 0;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &bytes) != 0 && errno != ERANGE) {
    return system_error("read the peer's groups", errno);
  }
  std::vector<gid_t> groups(bytes / sizeof(gid_t));
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) != 0) {
    return system_error("read the peer's groups", errno);
  }
  groups.resize(bytes / sizeof(gid_t));
  return groups;
}

Result<PeerCredentials> peer_of(int fd) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return system_error("read the peer's credentials", errno);
  }
  DJINN_TRY(std::vector<gid_t> groups, supplementary_groups(fd));
  groups.push_back(credentials.gid);
  return PeerCredentials{credentials.pid, credentials.uid, std::move(groups)};
}

}  // namespace djinn::ipc
