// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/process.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernel/base/assert.h"

namespace djinn::daemon {

Result<Fd> open_pidfd(pid_t child) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (pidfd.valid()) return pidfd;
  return system_error("watch a child process", errno);
}

int reap(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void send_signal(pid_t child, int signal) {
  DJINN_ASSERT(child > 1);  // signals to others go to whole groups, or to everybody
  ::kill(child, signal);
}

uint64_t cpu_ns_of(pid_t child) {
  clockid_t clock{};
  timespec used{};
  const bool known =
      ::clock_getcpuclockid(child, &clock) == 0 && ::clock_gettime(clock, &used) == 0;
  return known ? static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 +
                     static_cast<uint64_t>(used.tv_nsec)
               : 0;
}

}  // namespace djinn::daemon
