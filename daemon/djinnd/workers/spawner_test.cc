// SPDX-License-Identifier: Apache-2.0

// What programs begin with, and what the thread that starts them holds.
#include "daemon/djinnd/workers/spawner.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/socket.h"

namespace djinn::daemon {
namespace {

struct Pipe {
  Fd out;
  Fd in;

  Pipe() {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    out = Fd(fds[0]);
    in = Fd(fds[1]);
  }
  // Whether nobody but this can write any more, once we cannot.
  bool ends() {
    in.reset();
    pollfd entry{out.get(), 0, 0};
    return ::poll(&entry, 1, 20'000) == 1 && (entry.revents & POLLHUP) != 0;
  }
};

Spawner::Program shell(const char* script) {
  return {"/bin/sh", {"sh", "-c", script}, {"GREETING=hello"}};
}

// What the program says on its channel before it ends.
std::string said_by(Spawner& spawner, const Spawner::Program& program) {
  ipc::SocketPair pair = *ipc::make_socket_pair();
  const auto pid = spawner.start(program, pair.right);
  EXPECT_TRUE(pid) << pid.error().message;
  pair.right.reset();
  std::string said;
  for (;;) {
    pollfd entry{pair.left.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
    const auto message = ipc::receive_datagram(pair.left.get());
    if (!message.ok() || !message.value()) break;
    const auto& bytes = message.value()->bytes;
    said.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  EXPECT_EQ(::waitpid(*pid, nullptr, 0), *pid);
  return said;
}

std::string said_by(Spawner& spawner, const char* script) {
  return said_by(spawner, shell(script));
}

// As systemd does it for a service. False where this process may not.
bool raise_ambient_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  data[0].inheritable |= 1u << CAP_LEASE | 1u << CAP_KILL;
  if (::syscall(SYS_capset, &header, data) != 0) return false;
  return ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_LEASE, 0, 0) == 0 &&
         ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0) == 0;
}

TEST(Spawner, a_program_keeps_of_djinnds_capabilities_the_one_for_leases_that_it_asked_for) {
  if (!raise_ambient_capabilities()) GTEST_SKIP() << "NEEDS CAP_LEASE AND CAP_KILL TO GIVE AWAY";
  Spawner spawner;
  Spawner::Program asking = shell("grep CapAmb /proc/self/status >&3");
  const Spawner::Program plain = asking;
  asking.takes_leases = true;
  EXPECT_EQ(said_by(spawner, plain), "CapAmb:\t0000000000000000\n");
  EXPECT_EQ(said_by(spawner, asking), "CapAmb:\t0000000010000000\n");
  EXPECT_EQ(said_by(spawner, plain), "CapAmb:\t0000000000000000\n");
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

TEST(Spawner, a_program_begins_with_its_channel_and_the_standard_descriptors) {
  Spawner spawner;
  const Pipe ours;
  // The last is the shell's own, of the directory.
  EXPECT_EQ(said_by(spawner, "cd /proc/$$/fd && echo * >&3"), "0 1 2 3 4\n");
  EXPECT_EQ(said_by(spawner, "readlink /proc/self/fd/0 >&3"), "/dev/null\n");
}

TEST(Spawner, a_program_has_the_environment_that_it_is_given_and_no_signal_blocked) {
  Spawner spawner;
  EXPECT_EQ(said_by(spawner, "echo $GREETING >&3; grep SigBlk /proc/self/status >&3"),
            "hello\nSigBlk:\t0000000000000000\n");
}

TEST(Spawner, its_thread_holds_nothing_of_ours) {
  Pipe before;
  Spawner spawner;
  Pipe after;
  EXPECT_TRUE(before.ends());
  EXPECT_TRUE(after.ends());
}

TEST(Spawner, a_child_holds_nothing_of_ours_while_it_begins) {
  Spawner spawner;
  Pipe pipe;
  ipc::SocketPair pair = *ipc::make_socket_pair();
  const auto pid = spawner.start(shell("read -r _"), pair.right);  // stdin is from nowhere
  ASSERT_TRUE(pid);
  EXPECT_TRUE(pipe.ends());
  EXPECT_EQ(::waitpid(*pid, nullptr, 0), *pid);
}

TEST(Spawner, a_program_that_is_not_there_is_an_error_and_the_next_one_starts) {
  Spawner spawner;
  const ipc::SocketPair pair = *ipc::make_socket_pair();
  const auto missing = spawner.start({"/nowhere/at/all", {"all"}, {}}, pair.right);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("No such file"), std::string::npos)
      << missing.error().message;
  EXPECT_EQ(said_by(spawner, "echo here >&3"), "here\n");
}

}  // namespace
}  // namespace djinn::daemon
