// SPDX-License-Identifier: Apache-2.0

#include "daemon/child/memory_bound.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace djinn::child {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// The number that body gave in a process that may take 64 MiB more.
int in_bounded_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(bound_private_memory(64 * kMiB).ok() ? body() : 100);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

bool maps(size_t bytes, int protection, int flags) {
  return ::mmap(nullptr, bytes, protection, flags | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}

TEST(MemoryBound, refuses_private_memory_beyond_it) {
  const int failed = in_bounded_child([] {
    if (!maps(32 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE)) return 1;
    if (maps(64 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE)) return 2;
    if (!maps(16 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE))
      return 3;  // a smaller one still fits
    return 0;
  });
  EXPECT_EQ(failed, 0);
}

TEST(MemoryBound, counts_no_shared_memory_and_no_reservation) {
  const int failed = in_bounded_child([] {
    if (!maps(1024 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED)) return 1;
    if (!maps(1024 * kMiB, PROT_NONE, MAP_PRIVATE)) return 2;
    if (!maps(1024 * kMiB, PROT_READ, MAP_PRIVATE)) return 3;
    return 0;
  });
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace djinn::child
