// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/lease_socket.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "ipc/socket.h"

namespace djinn::client {
namespace {

// After this time it is checked whether the caller still waits. Each new try goes to the end of the
// kernel's line.
constexpr uint32_t kSliceMs = 250;
constexpr uint32_t kWaitMs = 10'000;  // for room in the queue of a djinnd that many connect to

// Holds the numbers of the open sockets. Its lock is held while a process forks, so that no thread
// is in the middle of opening or closing one. Otherwise it is held for moments.
class Sockets {
 public:
  // The one instance is never destroyed: a client may outlive everything else.
  static Sockets& get() {
    static auto* const sockets = new Sockets;
    return *sockets;
  }

  Result<Fd> make() {
    const std::lock_guard lock(mutex_);
    DJINN_TRY(Fd fd, ipc::make_unix_socket());
    numbers_.insert(fd.get());
    return fd;
  }

  Result<ipc::SocketPair> make_pair() {
    const std::lock_guard lock(mutex_);
    DJINN_TRY(ipc::SocketPair pair, ipc::make_socket_pair());
    numbers_.insert({pair.left.get(), pair.right.get()});
    return pair;
  }

  void close(Fd& fd) {
    const std::lock_guard lock(mutex_);
    numbers_.erase(fd.get());
    fd.reset();
  }

 private:
  Sockets() {
    ::pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                     [] { get().leave_to_parent(); });
  }

  // Runs in the child, and makes nothing but system calls. The numbers stay taken, for their owners
  // close them.
  void leave_to_parent() {
    if (!numbers_.empty()) {
      const Fd nobody(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      for (const int number : numbers_) {
        if (nobody.valid()) ::dup3(nobody.get(), number, O_CLOEXEC);
      }
    }
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<int> numbers_;
};

}  // namespace

Result<LeaseSocket> LeaseSocket::connect(std::string_view path, const Deadline* deadline) {
  DJINN_TRY(Fd fd, Sockets::get().make());
  LeaseSocket made(std::move(fd));
  for (uint32_t waited_ms = 0;; waited_ms += kSliceMs) {
    const Status connected = ipc::connect_unix(made.fd_, path, kSliceMs);
    if (connected) return made;
    const Status goes_on = deadline != nullptr ? deadline->check() : Status();
    if (!goes_on && goes_on.error().code == ErrorCode::kCancelled) return goes_on.error();
    const bool may_pass = connected.error().code == ErrorCode::kBusy;
    if (!may_pass || !goes_on || waited_ms >= kWaitMs) return connected.error();
  }
}

Result<LeaseSocket::Pair> LeaseSocket::make_pair() {
  DJINN_TRY(ipc::SocketPair pair, Sockets::get().make_pair());
  return Pair{LeaseSocket(std::move(pair.left)), LeaseSocket(std::move(pair.right))};
}

void LeaseSocket::close() noexcept {
  if (fd_.valid()) Sockets::get().close(fd_);
}

}  // namespace djinn::client
