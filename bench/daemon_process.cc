// SPDX-License-Identifier: Apache-2.0

#include "bench/daemon_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace djinn::bench {
namespace {

template <typename T>
T must(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "bench: {}\n", result.error().message);
    ::abort();
  }
  return *std::move(result);
}

std::string beside_this_program(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

constexpr int kServiceNice = -10;  // as packaging/systemd/djinnd.service has it

int start(const std::string& directory, const std::vector<std::string>& mode) {
  const bool as_service = std::ranges::find(mode, "--user") == mode.end();
  // Nothing is measured of the kernels, and kept for the user's own djinnd.
  std::vector<std::string> arguments{beside_this_program("djinnd"), "--runtime-dir", directory,
                                     "--kernels", "standard"};
  arguments.insert(arguments.end(), mode.begin(), mode.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const int pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (as_service) ::setpriority(PRIO_PROCESS, 0, kServiceNice);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  return pid;
}

}  // namespace

DaemonProcess& DaemonProcess::shared() {
  static DaemonProcess process({"--user"});
  return process;
}

DaemonProcess::DaemonProcess(const std::vector<std::string>& mode) {
  std::string pattern = std::filesystem::temp_directory_path() / "djinn-bench-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) ::abort();
  directory_ = pattern;
  pid_ = start(directory_, mode);
  // djinnd is ready when it welcomes a session. A start takes about a second.
  client::ConnectOptions options;
  options.host = "unix:" + socket_path();
  for (int tries = 0; tries < 600 && !client::Client::connect(options); ++tries) {
    ::poll(nullptr, 0, 50);
  }
}

DaemonProcess::~DaemonProcess() {
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::unique_ptr<client::Client> DaemonProcess::connect(bool observer) const {
  client::ConnectOptions options;
  options.host = "unix:" + socket_path();
  options.name = "bench";
  options.observer = observer;
  return must(client::Client::connect(options));
}

uint32_t DaemonProcess::worker_pid() const {
  const auto report = must(connect(true)->status());
  for (const ipc::WorkerReport& worker : report.workers) {
    if (worker.state == ipc::WorkerState::kReady) return worker.pid;
  }
  return 0;
}

}  // namespace djinn::bench
