// SPDX-License-Identifier: Apache-2.0

// Control sockets: AF_UNIX, SOCK_SEQPACKET, one control message a datagram, with descriptors.
//
//   Datagram          the bytes of one message and the descriptors that came with it
//   PeerCredentials   who connected, as the kernel recorded it at that moment
//
// invariant: a descriptor that was received is owned by a Datagram, handed over as one of a message
// that is refused, or closed; none leaks, whatever the peer sends.
// No call here blocks, whether or not the socket is non-blocking itself.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ipc/limits.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::ipc {

struct Datagram {
  std::vector<std::byte> bytes;
  std::vector<Fd> fds;  // close-on-exec, in the sender's order
};

// Sends one message. fds stay the caller's. Errors: kInvalidArgument for no bytes (which would read
// as the end), kLimitExceeded for more than limits.h allows, kBusy when the socket's buffer is full
// (send again when it is writable), kDisconnected when the peer is gone.
Status send_datagram(int fd, std::span<const std::byte> bytes, std::span<const int> fds = {});

// The next message; nothing if none is waiting. Errors: kDisconnected at the end of the stream, as
// which an empty message counts, kProtocolViolation when the message or its descriptors exceed
// limits.h, kLimitExceeded where this process may open no more descriptors. of_refused: gets the
// descriptors of such a message, for who must not close them here; null: they are closed.
Result<std::optional<Datagram>> receive_datagram(int fd, std::vector<Fd>* of_refused = nullptr);

// A socket for connect_unix(), which is not connected yet.
Result<Fd> make_unix_socket();
// Connects it to the socket at path; it does not block from then on. Where the listener's queue is
// full it waits, at most so long, in a line with others who do: who comes again and again may find
// it full each time. Errors: kInvalidArgument for a path that does not fit an address, kNotFound
// when nobody listens there, kPermissionDenied, kBusy when the queue stays full, or a signal came.
Status connect_unix(const Fd& socket, std::string_view path, uint32_t wait_ms);
// Both at once, without waiting.
Result<Fd> connect_unix(std::string_view path);

// Both ends of a connection, non-blocking.
struct SocketPair {
  Fd left;
  Fd right;
};
Result<SocketPair> make_socket_pair();

struct PeerCredentials {
  pid_t pid = 0;  // for people: it may name another process by now
  uid_t uid = 0;
  std::vector<gid_t> groups;  // primary and supplementary
};
// Who is at the other end of a connected socket.
Result<PeerCredentials> peer_of(int fd);

}  // namespace djinn::ipc
