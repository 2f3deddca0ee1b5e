// SPDX-License-Identifier: Apache-2.0

// Against a journald that takes nothing, in a mount namespace of a process of its own.
#include "daemon/djinnd/events/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "kernel/base/fd.h"

namespace djinn::daemon {
namespace {

constexpr int kMayNot = 2;
constexpr std::string_view kSocket = "/run/systemd/journal/socket";
constexpr auto kDeadline = std::chrono::seconds(20);

Event one_event() {
  return Event{EventKind::kResumed, "resumed", {}};
}

// A journald's socket; invalid where this process may not mount.
Fd journald_of_our_own() {
  const bool apart = ::unshare(CLONE_NEWNS) == 0 &&
                     ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                     ::mount("none", "/run", "tmpfs", 0, nullptr) == 0;
  if (!apart) return {};
  ::mkdir("/run/systemd", 0755);
  ::mkdir("/run/systemd/journal", 0755);
  Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(kSocket, address.sun_path);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

void say_that_stderr_is_the_journal() {
  struct stat info {};
  ::fstat(STDERR_FILENO, &info);
  ::setenv("JOURNAL_STREAM", fmt::format("{}:{}", info.st_dev, info.st_ino).c_str(), 1);
}

// Reads messages until one has the text.
bool hears(const Fd& socket, const std::string& text) {
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  std::array<char, 4096> buffer{};
  timeval patience{1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  while (std::chrono::steady_clock::now() < until) {
    const ssize_t length = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    const std::string message(buffer.data(), length > 0 ? static_cast<size_t>(length) : 0);
    if (message.find(text) != std::string::npos) return true;
  }
  return false;
}

// The exit code of the test's process.
int write_to_a_deaf_journald() {
  const Fd journald = journald_of_our_own();
  if (!journald.valid()) return kMayNot;
  say_that_stderr_is_the_journal();
  Journal journal;
  const auto begun = std::chrono::steady_clock::now();
  constexpr uint64_t kTooMany = 2 * Journal::kBacklogMax;
  for (uint64_t i = 0; i < kTooMany; ++i) journal.write(one_event());
  const bool waited = std::chrono::steady_clock::now() - begun > kDeadline;
  const uint64_t lost = journal.lost();
  if (waited || lost == 0 || lost > kTooMany - Journal::kBacklogMax) return 1;
  if (!hears(journald, "MESSAGE=resumed")) return 1;
  // There is place again, some time: the next one that finds it brings the number with it.
  std::thread reader([&] { ::_exit(hears(journald, "messages of djinnd are missing") ? 0 : 1); });
  while (true) {
    journal.write(one_event());
    std::this_thread::yield();
  }
}

TEST(JournalTest, one_that_takes_nothing_delays_nobody_and_hears_how_much_was_lost) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(write_to_a_deaf_journald());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kMayNot) GTEST_SKIP() << "NEEDS ROOT, for a /run of its own";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace djinn::daemon
