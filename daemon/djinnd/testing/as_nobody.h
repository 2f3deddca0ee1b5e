// SPDX-License-Identifier: Apache-2.0

// as_nobody(): something done by another user, in tests that run as root.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace djinn::daemon::testing {

// Runs body as user 65534 in a process of its own; gives its exit code.
inline int as_nobody(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    // Its own group, which may connect, is the tests' root group.
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(100);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

}  // namespace djinn::daemon::testing
