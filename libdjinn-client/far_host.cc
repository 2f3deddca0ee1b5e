// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/far_host.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "ipc/socket.h"
#include "libdjinn-client/spawn.h"

namespace djinn::client {
namespace {

constexpr const char* kProgram = "djinn-reach";
constexpr int kDoorNumber = 3;  // in djinn-reach

// The doors of this process, by the host's text. In the child of a fork they lead nowhere, as all
// lease sockets do, so it starts a djinn-reach of its own. The lock is held for moments, and no
// socket is made or closed under it.
class Doors {
 public:
  // The one instance is never destroyed: a client may outlive everything else.
  static Doors& get() {
    static auto* const doors = new Doors;
    return *doors;
  }

  // Hands the end of a session to the djinn-reach of the host. Errors: kNotFound where there is
  // none, or it is gone.
  Status hand_over(const std::string& host, const LeaseSocket& end) {
    const std::lock_guard lock(mutex_);
    const auto door = doors_.find(host);
    if (door == doors_.end()) return Error{ErrorCode::kNotFound, "There is no djinn-reach yet."};
    return send(door->second, end);
  }

  // Keeps the door, unless another thread's has come first that still leads somewhere: then it is
  // closed, and its djinn-reach ends with its session.
  void keep(const std::string& host, LeaseSocket door) {
    const std::lock_guard lock(mutex_);
    const auto found = doors_.find(host);
    if (found == doors_.end()) {
      doors_.emplace(host, std::move(door));
    } else if (!leads_somewhere(found->second)) {
      std::swap(found->second, door);
    }
  }

  static Status send(const LeaseSocket& door, const LeaseSocket& end) {
    constexpr std::array kWord{std::byte{1}};
    const int number = end.get();
    return ipc::send_datagram(door.get(), kWord, std::span(&number, 1));
  }

 private:
  static bool leads_somewhere(const LeaseSocket& door) {
    pollfd entry{door.get(), POLLOUT, 0};
    return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLHUP | POLLERR)) == 0;
  }

  Doors() {
    ::pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                     [] { get().mutex_.unlock(); });
  }

  std::mutex mutex_;
  std::map<std::string, LeaseSocket> doors_;
};

// What is started forks at once and ends, so the program has no child of ours but for a moment.
Result<LeaseSocket> start_reach(const Host& host) {
  DJINN_TRY(LeaseSocket::Pair door, LeaseSocket::make_pair());
  sigset_t all;
  ::sigfillset(&all);
  const Inherited inherited{door.theirs.get(), kDoorNumber};
  const auto pid = spawn({kProgram, "--door-fd", std::to_string(kDoorNumber), host.text()},
                         std::span(&inherited, 1), all);
  if (!pid && pid.error().code == ErrorCode::kNotFound) {
    return Error{
        ErrorCode::kNotFound,
        "djinn-reach, which speaks to other machines, is not in $PATH. Install the package "
        "djinn-reach, or name a djinnd of this machine."};
  }
  if (!pid) return pid.error();
  int status = 0;  // of a program that waits for any child, somebody else may have it
  while (::waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) {
    return Error{ErrorCode::kSystem, "djinn-reach could not start, with status " +
                                         std::to_string(WEXITSTATUS(status)) +
                                         ". Say 'djinn-reach --version' to see why."};
  }
  return std::move(door.ours);
}

}  // namespace

Result<LeaseSocket> connect_far(const Host& host) {
  DJINN_TRY(LeaseSocket::Pair session, LeaseSocket::make_pair());
  const std::string name = host.text();
  const Status given = Doors::get().hand_over(name, session.theirs);
  if (given) return std::move(session.ours);
  if (given.error().code == ErrorCode::kBusy) {
    return Error{ErrorCode::kBusy, "djinn-reach has many sessions to begin. Try again later."};
  }
  DJINN_TRY(LeaseSocket door, start_reach(host));
  DJINN_CHECK(Doors::send(door, session.theirs));
  Doors::get().keep(name, std::move(door));
  return std::move(session.ours);
}

}  // namespace djinn::client
