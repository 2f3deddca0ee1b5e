// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace djinn::ctl {
namespace {

constexpr uint64_t kDeadlineNs = 10'000'000'000;

class FileActions {
 public:
  FileActions() { ::posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { ::posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  void open_null(int fd, int flags) {
    ::posix_spawn_file_actions_addopen(&actions_, fd, "/dev/null", flags, 0);
  }
  void move(int from, int to) { ::posix_spawn_file_actions_adddup2(&actions_, from, to); }
  [[nodiscard]] const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

Result<pid_t> spawn(const std::vector<std::string>& command, int out, ErrorsTo errors) {
  FileActions actions;
  actions.open_null(STDIN_FILENO, O_RDONLY);
  actions.move(out, STDOUT_FILENO);
  if (errors == ErrorsTo::kOutput) actions.move(out, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int failed =
      ::posix_spawnp(&pid, arguments[0], actions.get(), nullptr, arguments.data(), environ);
  if (failed == ENOENT) {
    return Error{ErrorCode::kNotFound, "There is no program " + command[0] + " here."};
  }
  if (failed != 0) return system_error("start a program", failed);
  return pid;
}

// Reads until the other end is closed, or the deadline has passed.
Status read_all(int fd, std::string& out) {
  const SystemClock clock;
  const uint64_t deadline_ns = clock.monotonic_ns() + kDeadlineNs;
  std::array<char, 65536> buffer{};
  for (;;) {
    const uint64_t now_ns = clock.monotonic_ns();
    if (now_ns >= deadline_ns) {
      return Error{ErrorCode::kTimeout, "It did not end within ten seconds."};
    }
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>((deadline_ns - now_ns) / 1'000'000) + 1) <= 0) continue;
    const ssize_t length = ::read(fd, buffer.data(), buffer.size());
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return system_error("read what a program says", errno);
    if (length == 0) return {};
    out.append(buffer.data(), static_cast<size_t>(length));
    if (out.size() > kSaidBytesMax) return Error{ErrorCode::kLimitExceeded, "It says too much."};
  }
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Result<Said> run_program(const std::vector<std::string>& command, ErrorsTo errors) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("make a pipe", errno);
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  DJINN_TRY(const pid_t pid, spawn(command, writing.get(), errors));
  writing = Fd();
  Said said;
  const Status read = read_all(reading.get(), said.out);
  if (!read) ::kill(pid, SIGKILL);
  said.exit_code = wait_for(pid);
  if (!read) return read.error();
  return said;
}

std::string own_directory() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string self(path.data(), length > 0 ? static_cast<size_t>(length) : 0);
  return self.substr(0, self.rfind('/') + 1);
}

}  // namespace djinn::ctl
