// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <span>
#include <utility>

#include "daemon/djinnd/loop/background.h"
#include "ipc/socket.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.data()));
  pointers.push_back(nullptr);
  return pointers;
}

// Sets the capabilities of this thread, which the next child inherits. If djinnd does not have one,
// the child gets none.
void keep_capabilities(const Spawner::Program& program) {
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  if (program.takes_leases) ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_LEASE, 0, 0);
}

Result<pid_t> spawn(const Spawner::Program& program, int channel) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, channel, Spawner::kChannelNumber);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int failed =
      ::posix_spawn(&pid, program.path.c_str(), &actions, &attributes,
                    pointers_to(program.arguments).data(), pointers_to(program.environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return system_error("start a child process", failed);
  return pid;
}

// dup2 to the same number would leave close-on-exec set.
Fd away_from_channel_number(Fd fd) {
  if (fd.get() != Spawner::kChannelNumber) return fd;
  return Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, Spawner::kChannelNumber + 1));
}

// After this call the thread has a table of descriptors of its own.
Status keep_only(int fd) {
  const auto first = static_cast<unsigned>(STDERR_FILENO + 1);
  const auto kept = static_cast<unsigned>(fd);
  const bool alone = ::close_range(kept + 1, ~0U, CLOSE_RANGE_UNSHARE) == 0 &&
                     (kept == first || ::close_range(first, kept - 1, 0) == 0);
  if (alone) return {};
  return system_error("have a thread that starts processes", errno);
}

// The channel was sent before the order was given, so the message is there.
Result<pid_t> carry_out(const Spawner::Program& program, int socket) {
  DJINN_TRY(auto message, ipc::receive_datagram(socket));
  if (!message || message->fds.size() != 1) {
    return Error{ErrorCode::kInternal, "A child process was to start without its channel."};
  }
  keep_capabilities(program);
  const Fd channel = away_from_channel_number(std::move(message->fds[0]));
  return spawn(program, channel.get());
}

}  // namespace

Spawner::Spawner() {
  auto pair = ipc::make_socket_pair();
  if (!pair.ok()) {
    ready_ = pair.error();
    return;
  }
  socket_ = std::move(pair.value().left);
  auto started =
      start_thread("spawner", [this, socket = pair.value().right.get()] { serve(socket); });
  if (!started.ok()) {
    ready_ = started.error();
    return;
  }
  thread_ = *std::move(started);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return serving_; });  // before that its end is ours, too
}

Spawner::~Spawner() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// When the thread ends, its table of descriptors goes, and with it the socket.
void Spawner::serve(int socket) {
  const Status alone = keep_only(socket);
  std::unique_lock lock(mutex_);
  ready_ = alone;
  serving_ = true;
  changed_.notify_all();
  while (alone) {
    changed_.wait(lock, [this] { return stopping_ || order_ != nullptr; });
    if (stopping_) return;
    answer_ = carry_out(*order_, socket);
    order_ = nullptr;
    changed_.notify_all();
  }
}

Result<pid_t> Spawner::start(const Program& program, const Fd& channel) {
  DJINN_ASSERT(channel.valid() && !program.arguments.empty());
  std::unique_lock lock(mutex_);
  DJINN_ASSERT(order_ == nullptr);
  DJINN_CHECK(ready_);
  const std::byte order{};
  const int fds[] = {channel.get()};
  DJINN_CHECK(ipc::send_datagram(socket_.get(), std::span(&order, 1), fds));
  order_ = &program;
  changed_.notify_all();
  changed_.wait(lock, [this] { return order_ == nullptr; });
  return answer_;
}

}  // namespace djinn::daemon
