#include "daemon/djinnd/child_process.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "daemon/djinnd/log.h"
#include "ipc/build_identity.h"

extern char** environ;

namespace djinn::daemon {
namespace {

constexpr int kChannelNumber = 3;
// A child that is stopped lets its messages wait; it is killed as hung long before this fills.
constexpr size_t kBacklogMax = 1 << 16;
constexpr int kPatienceMs = 500;

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> arguments_of(const ChildProgram& program) {
  std::vector<std::string> arguments{program.path, ipc::kBuildOption,
                                     std::string(ipc::build_identity()), "--channel-fd",
                                     std::to_string(kChannelNumber)};
  arguments.insert(arguments.end(), program.arguments.begin(), program.arguments.end());
  return arguments;
}

std::vector<std::string> environment_of(const ChildProgram& program) {
  std::vector<std::string> environment = program.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

// Gives the process id. The child has stdin from nowhere, our stdout and stderr, and the channel.
Result<pid_t> spawn(const ChildProgram& program, int channel) {
  std::vector<std::string> arguments = arguments_of(program);
  std::vector<std::string> environment = environment_of(program);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, channel, kChannelNumber);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int failed = ::posix_spawn(&pid, program.path.c_str(), &actions, &attributes,
                                   pointers_to(arguments).data(), pointers_to(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return system_error("start a child process", failed);
  return pid;
}

// dup2 to its own number would leave close-on-exec set.
Result<Fd> away_from_channel_number(Fd socket) {
  if (socket.get() != kChannelNumber) return socket;
  return socket.duplicate();
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(Loop& loop, const ChildProgram& program,
                                                          Traffic& traffic) {
  DJINN_TRY(ipc::SocketPair pair, ipc::make_socket_pair());
  DJINN_TRY(const Fd theirs, away_from_channel_number(std::move(pair.right)));
  DJINN_TRY(const pid_t pid, spawn(program, theirs.get()));
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) {
    const int why = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return system_error("watch a child process", why);
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(loop, pid, std::move(pidfd), std::move(pair.left), traffic));
}

ChildProcess::ChildProcess(Loop& loop, pid_t pid, Fd pidfd, Fd socket, Traffic& traffic)
    : pid_(pid), pidfd_(std::move(pidfd)) {
  channel_.emplace(loop, std::move(socket), kBacklogMax, traffic,
                   Channel::Events{[this](ipc::Datagram message) {
                                     if (events_.message && !ended_)
                                       events_.message(std::move(message));
                                   },
                                   // A child without channel is of no use; its exit tells the rest.
                                   [this](const Error&) { kill(); }});
  exit_.emplace(loop, pidfd_.get(), [this] { on_exit(); });
  exit_->watch_readable();
}

ChildProcess::~ChildProcess() {
  silence();
  if (reaped_) return;
  kill();
  pollfd entry{pidfd_.get(), POLLIN, 0};
  if (::poll(&entry, 1, kPatienceMs) == 1) {
    reap();
  } else {
    log("process {} is left behind: it is killed, and waits for a file system", pid_);
  }
}

void ChildProcess::end() {
  silence();
  if (reaped_) return;
  kill();
  reap();
}

void ChildProcess::silence() {
  ended_ = true;
  exit_->pause();
  channel_->mute();
}

void ChildProcess::send(std::span<const std::byte> bytes, std::span<const int> fds) {
  channel_->send(bytes, fds);
}

void ChildProcess::send_shared(std::span<const std::byte> bytes, std::vector<SharedFd> fds) {
  channel_->send_shared(bytes, std::move(fds));
}

void ChildProcess::kill() {
  if (!reaped_) ::kill(pid_, SIGKILL);
}

void ChildProcess::reap() {
  while (::waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
}

bool ChildProcess::refused_our_build() const {
  return reaped_ && WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == ipc::kOtherBuildStatus;
}

void ChildProcess::on_exit() {
  exit_->pause();
  reap();
  channel_->drain();
  channel_->mute();
  if (events_.exited && !ended_) events_.exited();
}

}  // namespace djinn::daemon
