// SPDX-License-Identifier: Apache-2.0

// A djinn-mover of a test, on the fakes, and djinnd's end of its channel.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/build_identity.h"
#include "ipc/codec/mover_codec.h"
#include "ipc/socket.h"
#include "kernel/base/fd.h"

extern char** environ;

namespace djinn::mover {

class MoverProcess {
 public:
  struct Answer {
    ipc::MoverEvent event;
    std::vector<Fd> fds;
  };

  // fakes: "NAME=VALUE", beside what this process has.
  explicit MoverProcess(const std::vector<std::string>& fakes) {
    auto pair = ipc::make_socket_pair();
    EXPECT_TRUE(pair);
    socket_ = std::move(pair->left);
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").replace_filename("djinn-mover");
    std::vector<std::string> arguments{program,
                                       ipc::kBuildOption,
                                       std::string(ipc::build_identity()),
                                       "--channel-fd",
                                       "3",
                                       "--device",
                                       "0"};
    std::vector<std::string> environment = fakes;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view inherited(*entry);
      const std::string_view name = inherited.substr(0, inherited.find('=') + 1);
      const bool is_said = std::ranges::any_of(
          fakes, [&](const std::string& said) { return said.starts_with(name); });
      if (!is_said) environment.emplace_back(inherited);
      // Who looks for leaks needs what the filter forbids.
      if (name == "ASAN_OPTIONS=") environment.back() += ":detect_leaks=0";
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    const Fd other(::fcntl(pair->right.get(), F_DUPFD_CLOEXEC, 10));
    ::posix_spawn_file_actions_adddup2(&actions, other.get(), 3);
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr,
                            pointers_to(arguments).data(), pointers_to(environment).data()),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~MoverProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)end();
  }
  MoverProcess(const MoverProcess&) = delete;
  MoverProcess& operator=(const MoverProcess&) = delete;

  void send(const ipc::MoverOrder& order, std::span<const int> fds = {}) {
    (void)ipc::send_datagram(socket_.get(), ipc::encode(order), fds);
  }
  void send_bytes(std::span<const std::byte> bytes) {
    (void)ipc::send_datagram(socket_.get(), bytes);
  }

  // Nothing: the mover has ended.
  std::optional<Answer> receive() {
    for (;;) {
      auto got = ipc::receive_datagram(socket_.get());
      if (!got.ok()) return std::nullopt;
      if (got.value()) {
        auto event = ipc::decode_mover_event(got.value()->bytes);
        EXPECT_TRUE(event);
        return Answer{*std::move(event), std::move(got.value()->fds)};
      }
      pollfd waiting{socket_.get(), POLLIN, 0};
      EXPECT_EQ(::poll(&waiting, 1, 60'000), 1);
    }
  }
  std::optional<Answer> ask(const ipc::MoverOrder& order, std::span<const int> fds = {}) {
    send(order, fds);
    return receive();
  }

  // Closes the channel. Waits for the end, and gives the exit status, or minus the signal.
  int end() {
    socket_.reset();
    int status = 0;
    EXPECT_GT(::waitpid(std::exchange(pid_, -1), &status, 0), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void kill() { ::kill(pid_, SIGKILL); }

 private:
  static std::vector<char*> pointers_to(std::vector<std::string>& strings) {
    std::vector<char*> pointers;
    for (std::string& text : strings) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  Fd socket_;
  pid_t pid_ = -1;
};

}  // namespace djinn::mover
