// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "daemon/djinnd/loop/process.h"
#include "ipc/build_identity.h"
#include "kernel/base/assert.h"
#include "kernel/pal/memfd.h"

extern char** environ;

namespace djinn::daemon {
namespace {

// The messages to a stopped child wait here. It is killed as hung long before this many do.
constexpr size_t kBacklogMax = 1 << 16;

// What NVIDIA's driver exports is its control node (seen on an H200, driver 580.159). Nothing is
// asked of the file system that has the node.
bool is_of_gpu(const Fd& fd) {
  constexpr uint32_t kDriverMajor = 195, kControlMinor = 255;
  struct statx info {};
  if (::statx(fd.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0)
    return false;
  return S_ISCHR(info.stx_mode) && info.stx_rdev_major == kDriverMajor &&
         info.stx_rdev_minor == kControlMinor;
}

bool is_of_kind(const Fd& fd, SentFds kind) {
  if (kind == SentFds::kNone) return false;
  return pal::has_seals(fd, pal::Seals::kNone).ok() || (kind == SentFds::kExtents && is_of_gpu(fd));
}

std::vector<std::string> arguments_of(const ChildProgram& program) {
  std::vector<std::string> arguments{program.path, ipc::kBuildOption,
                                     std::string(ipc::build_identity()), "--channel-fd",
                                     std::to_string(Spawner::kChannelNumber)};
  arguments.insert(arguments.end(), program.arguments.begin(), program.arguments.end());
  return arguments;
}

// Gives each variable once: of two with one name some libraries take the first, others the last.
std::vector<std::string> environment_of(const ChildProgram& program) {
  std::vector<std::string> environment = program.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view inherited(*entry);
    const std::string_view name = inherited.substr(0, inherited.find('='));
    const bool is_said = std::ranges::any_of(program.environment, [&](std::string_view said) {
      return said.substr(0, said.find('=')) == name;
    });
    const bool is_withheld = std::ranges::any_of(
        program.withheld,
        [&](const std::string& beginning) { return name.starts_with(beginning); });
    if (!is_said && !is_withheld) environment.emplace_back(inherited);
  }
  return environment;
}

// The fake driver keeps a page of its own behind the memory.
constexpr uint64_t kBehindMax = 4096;

}  // namespace

bool is_extent_of_gpu(const Fd& fd, uint64_t bytes) {
  if (is_of_gpu(fd)) return true;
  const Result<bool> keeps_size = pal::has_seals(fd, pal::Seals::kShared);
  struct stat info {};
  if (!keeps_size.ok() || !keeps_size.value() || ::fstat(fd.get(), &info) != 0) return false;
  const auto size = static_cast<uint64_t>(info.st_size);
  return size >= bytes && size - bytes <= kBehindMax;
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const ChildHost& host,
                                                          const ChildProgram& program,
                                                          Traffic& traffic) {
  DJINN_TRY(ipc::SocketPair pair, ipc::make_socket_pair());
  DJINN_TRY(const pid_t pid, host.spawner.start({program.path, arguments_of(program),
                                                 environment_of(program), program.takes_leases},
                                                pair.right));
  Result<Fd> pidfd = open_pidfd(pid);
  if (!pidfd.ok()) {
    send_signal(pid, SIGKILL);
    daemon::reap(pid);
    return pidfd.error();
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(host, pid, *std::move(pidfd), std::move(pair.left), traffic));
}

ChildProcess::ChildProcess(const ChildHost& host, pid_t pid, Fd pidfd, Fd socket, Traffic& traffic)
    : pid_(pid),
      pidfd_(std::move(pidfd)),
      stragglers_(host.stragglers),
      closer_(host.deferred_close.of(Owner::of_user(::geteuid()))) {
  channel_.emplace(host.loop, std::move(socket), kBacklogMax, traffic,
                   Channel::Events{[this](ipc::Datagram message) { heard(std::move(message)); },
                                   // A child without a channel is of no use. Its exit tells the
                                   // rest.
                                   [this](const Error&) { kill(); }},
                   closer_->closing());
  exit_.emplace(host.loop, pidfd_.get(), [this] { on_exit(); });
  exit_->watch_readable();
}

ChildProcess::~ChildProcess() {
  silence();
  if (reaped_) return;
  kill();
  exit_.reset();
  stragglers_.take(pid_, std::move(pidfd_));
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

void ChildProcess::heard(ipc::Datagram message) {
  const bool expected = std::ranges::all_of(
      message.fds, [this](const Fd& fd) { return is_of_kind(fd, events_.expected); });
  if (!expected) {
    for (Fd& fd : message.fds) closer_->close(std::move(fd));  // a client's perhaps
    return kill();
  }
  if (events_.message && !ended_) events_.message(message);
  for (Fd& fd : message.fds) closer_->close(std::move(fd));  // it may be of much memory
}

void ChildProcess::send(std::span<const std::byte> bytes, std::span<const int> fds) {
  channel_->send(bytes, fds);
}

void ChildProcess::send_shared(std::span<const std::byte> bytes, std::vector<SharedFd> fds) {
  channel_->send_shared(bytes, std::move(fds));
}

void ChildProcess::kill() {
  if (!reaped_) send_signal(pid_, SIGKILL);
}

void ChildProcess::go_on() {
  if (!reaped_) send_signal(pid_, SIGCONT);
}

void ChildProcess::reap() {
  DJINN_ASSERT(!reaped_);
  wait_status_ = daemon::reap(pid_);
  reaped_ = true;
}

bool ChildProcess::ended_with(int status) const {
  return reaped_ && WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == status;
}

bool ChildProcess::refused_our_build() const {
  return ended_with(ipc::kOtherBuildStatus);
}

bool ChildProcess::found_other_device() const {
  return ended_with(ipc::kOtherDeviceStatus);
}

std::optional<ipc::AdmissionDesk> ChildProcess::crashed_at() const {
  if (!reaped_ || !WIFEXITED(wait_status_)) return std::nullopt;
  return ipc::desk_of_crash(WEXITSTATUS(wait_status_));
}

std::string ChildProcess::how_it_ended() const {
  DJINN_ASSERT(reaped_);
  if (!WIFSIGNALED(wait_status_)) return fmt::format("with status {}", WEXITSTATUS(wait_status_));
  const char* const name = ::sigabbrev_np(WTERMSIG(wait_status_));
  return name != nullptr ? fmt::format("of SIG{}", name)
                         : fmt::format("of signal {}", WTERMSIG(wait_status_));
}

uint64_t ChildProcess::cpu_ns() const {
  return cpu_ns_of(pid_);
}

void ChildProcess::on_exit() {
  exit_->pause();
  reap();
  channel_->drain();
  channel_->mute();
  if (events_.exited && !ended_) events_.exited();
}

}  // namespace djinn::daemon
