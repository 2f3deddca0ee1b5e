// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/stragglers.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <vector>

namespace djinn::daemon {
namespace {

// A child that lives until the other end of the pipe is closed.
struct Child {
  pid_t pid;
  Fd pidfd;
  Fd leash;
};

Child start() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[1]);
    char byte{};
    [[maybe_unused]] const ssize_t ended = ::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  ::close(ends[0]);
  return {pid, Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))), Fd(ends[1])};
}

bool was_reaped(pid_t pid) {
  return ::waitpid(pid, nullptr, WNOHANG) == -1 && errno == ECHILD;
}

TEST(Stragglers, each_is_reaped_whenever_it_ends) {
  Loop loop;
  Stragglers stragglers(loop);
  std::vector<Child> children;
  for (int i = 0; i < 3; ++i) {
    // Each has the leashes of those before it, so the last one ends first.
    children.push_back(start());
    stragglers.take(children[i].pid, std::move(children[i].pidfd));
  }
  for (const Child& child : children) EXPECT_EQ(::waitpid(child.pid, nullptr, WNOHANG), 0);
  EXPECT_EQ(stragglers.count(), 3u);
  for (Child& child : children) child.leash.reset();
  loop.run();  // until nothing is watched
  EXPECT_EQ(stragglers.count(), 0u);
  for (const Child& child : children) EXPECT_TRUE(was_reaped(child.pid));
}

TEST(Stragglers, what_has_ended_is_reaped_in_the_end_without_the_loop) {
  Loop loop;
  Child ends = start();
  Child stays = start();
  {
    Stragglers stragglers(loop);
    stragglers.take(ends.pid, std::move(ends.pidfd));
    stragglers.take(stays.pid, std::move(stays.pidfd));
    ::kill(ends.pid, SIGKILL);
  }
  EXPECT_TRUE(was_reaped(ends.pid));
  EXPECT_EQ(::waitpid(stays.pid, nullptr, WNOHANG), 0) << "nobody waits for it for long";
  stays.leash.reset();
  EXPECT_EQ(::waitpid(stays.pid, nullptr, 0), stays.pid);
}

}  // namespace
}  // namespace djinn::daemon
