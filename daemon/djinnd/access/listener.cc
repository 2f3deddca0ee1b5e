// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "daemon/djinnd/access/authority.h"
#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// A client that finds the queue full waits until there is room, and is served in its turn. With a
// longer queue, all others would stand behind a client that fills it and hangs up.
constexpr int kQueue = 64;
constexpr int kTurn = 16;
constexpr size_t kReserve = 16;
constexpr uint64_t kPauseMs = 10;  // in which those who were turned away are closed

Status make_directory(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return system_error("make the runtime directory " + path, errno);
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return system_error("look at the runtime directory " + path, errno);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
    return Error{ErrorCode::kPermissionDenied,
                 path +
                     " must be a directory of the user that runs djinnd, to be its runtime "
                     "directory. Choose another with --runtime-dir."};
  }
  return {};
}

Result<Fd> take_lock(const std::string& path) {
  Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return system_error("open the lock file " + path, errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error{ErrorCode::kBusy,
                 "Another djinnd has locked " + path +
                     ", and serves this runtime directory. Stop it, or choose another with "
                     "--runtime-dir."};
  }
  return lock;
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kInvalidArgument,
                 path + " is too long for a socket. Choose a shorter --runtime-dir."};
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<Fd> make_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return system_error("make the socket", errno);
  return socket;
}

// The lock file is not enough: for a socket that systemd made nobody holds a lock.
Status check_nobody_listens(const std::string& path, const sockaddr_un& address) {
  DJINN_TRY(const Fd probe, make_socket());
  const bool connected =
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (!connected && errno != EAGAIN) return {};  // EAGAIN: its queue is full
  return Error{ErrorCode::kBusy,
               "Somebody listens at " + path +
                   " already: another djinnd, or systemd for the service. Choose another "
                   "--runtime-dir, or 'djinnd --user'; or stop what listens there first."};
}

// The socket file exists with mode 0600 until its group is set.
Result<Fd> bind_socket(const std::string& path) {
  DJINN_TRY(const sockaddr_un address, address_of(path));
  DJINN_CHECK(check_nobody_listens(path, address));
  DJINN_TRY(Fd socket, make_socket());
  ::unlink(path.c_str());  // of a djinnd that was killed; we have the lock
  const mode_t before = ::umask(0177);
  const int bound =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int why = errno;
  ::umask(before);
  if (bound != 0) return system_error("bind the socket " + path, why);
  return socket;
}

Status open_to_group(const std::string& path, const std::string& name) {
  const auto group = group_named(name);
  if (!group) {
    return Error{ErrorCode::kNotFound,
                 "There is no group '" + name + "', which --socket-group gives the socket to."};
  }
  if (::chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0 || ::chmod(path.c_str(), 0660)) {
    return system_error("give the socket " + path + " to the group " + name, errno);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::open(Loop& loop, const Place& place, Events events) {
  const bool service = !place.socket_group.empty();
  DJINN_CHECK(make_directory(place.runtime_dir, service ? 0755 : 0700));
  DJINN_TRY(Fd lock, take_lock(place.runtime_dir + "/djinnd.lock"));
  std::string path = place.runtime_dir + "/djinnd.sock";
  DJINN_TRY(Fd socket, bind_socket(path));
  if (service) DJINN_CHECK(open_to_group(path, place.socket_group));
  if (::listen(socket.get(), kQueue) != 0) return system_error("listen", errno);
  return std::unique_ptr<Listener>(
      new Listener(loop, std::move(path), std::move(lock), std::move(socket), std::move(events)));
}

Result<std::unique_ptr<Listener>> Listener::open_for_gates(Loop& loop,
                                                           const std::string& runtime_dir,
                                                           Events events) {
  std::string path = runtime_dir + "/gate.sock";
  DJINN_TRY(Fd socket, bind_socket(path));
  if (::listen(socket.get(), kQueue) != 0) return system_error("listen", errno);
  return std::unique_ptr<Listener>(
      new Listener(loop, std::move(path), {}, std::move(socket), std::move(events)));
}

std::unique_ptr<Listener> Listener::adopt(Loop& loop, Fd socket, Events events) {
  return std::unique_ptr<Listener>(
      new Listener(loop, {}, {}, std::move(socket), std::move(events)));
}

Listener::Listener(Loop& loop, std::string path, Fd lock, Fd socket, Events events)
    : path_(std::move(path)),
      lock_(std::move(lock)),
      socket_(std::move(socket)),
      events_(std::move(events)),
      poll_(loop, socket_.get(), [this] { accept_some(); }),
      pause_(loop, [this] { poll_.watch_readable(); }) {
  DJINN_ASSERT(socket_.valid() && events_.connected && events_.too_many);
  struct stat made {};
  if (!path_.empty() && ::lstat(path_.c_str(), &made) == 0) file_ = {made.st_dev, made.st_ino};
  fill_reserve();
  poll_.watch_readable();
}

std::string Listener::path() const {
  if (path_.empty()) return {};
  std::error_code error;
  const std::filesystem::path from_root = std::filesystem::absolute(path_, error);
  return error ? path_ : from_root.lexically_normal().string();
}

Listener::~Listener() {
  if (is_ours()) ::unlink(path_.c_str());
}

// Tells whether the file at the path is still the one that was made for our socket.
bool Listener::is_ours() const {
  struct stat at_path {};
  return !path_.empty() && ::lstat(path_.c_str(), &at_path) == 0 &&
         at_path.st_dev == file_.device && at_path.st_ino == file_.inode;
}

void Listener::fill_reserve() {
  while (reserve_.size() < kReserve) {
    Fd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!one.valid()) return;
    reserve_.push_back(std::move(one));
  }
  DJINN_ASSERT(reserve_.size() == kReserve);
}

void Listener::accept_some() {
  fill_reserve();
  const auto* taken = &events_.connected;
  for (int i = 0; i < kTurn;) {
    Fd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client.valid()) {
      paused_told_ = false;
      const auto peer = ipc::peer_of(client.get());
      if (peer.ok()) (*taken)(std::move(client), peer.value());
      ++i;
      continue;
    }
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    if (reserve_.empty()) return pause();
    reserve_.pop_back();
    taken = &events_.too_many;
  }
}

// Accepting again at once would fail in the same way, and only use up a core.
void Listener::pause() {
  DJINN_ASSERT(reserve_.empty());
  if (!std::exchange(paused_told_, true)) {
    log("no connection can be taken: {}", system_error("accept", errno).message);
  }
  poll_.pause();
  pause_.start_once(kPauseMs);
}

}  // namespace djinn::daemon
