// SPDX-License-Identifier: Apache-2.0

#include "ipc/bell.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace djinn::ipc {

Result<Fd> make_submission_bell() {
  Fd bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!bell.valid()) return system_error("make a bell", errno);
  return bell;
}

void ring_submission_bell(const Fd& bell) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell.get(), &one, sizeof one);
}

Status watch_submission_bell(const Fd& epoll, const Fd& bell, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = key;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, bell.get(), &event) == 0) return {};
  return system_error("watch a bell", errno);
}

void unwatch_submission_bell(const Fd& epoll, const Fd& bell) {
  // A bell that could not be watched is as good as one that is not watched any more.
  static_cast<void>(::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, bell.get(), nullptr));
}

Result<CompletionBell> make_completion_bell() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_error("make a bell", errno);
  }
  CompletionBell made{Fd(ends[0]), Fd(ends[1])};
  if (::shutdown(made.bell.get(), SHUT_RD) != 0) return system_error("make a bell", errno);
  return made;
}

void ring_completion_bell(const Fd& bell) {
  char one = 1;
  iovec part{&one, sizeof one};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  [[maybe_unused]] const ssize_t sent =
      ::sendmsg(bell.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void take_rings(const Fd& listener) {
  char rings[64];
  [[maybe_unused]] const ssize_t taken = ::recv(listener.get(), rings, sizeof rings, MSG_DONTWAIT);
}

}  // namespace djinn::ipc
