// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/admission_mark.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "ipc/exit_status.h"

namespace djinn::worker {
namespace {

constexpr int kSurvived = 3;
constexpr auto kDesk = ipc::AdmissionDesk::kLong;

// How a process ended that did that with marks installed.
int status_after(const std::function<void()>& work) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const rlimit none{};
    ::setrlimit(RLIMIT_CORE, &none);
    AdmissionMark::install();
    work();
    ::_exit(kSurvived);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

bool says_admitting(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == ipc::status_of_crash_at(kDesk);
}

TEST(AdmissionMark, a_crash_under_it_says_so_by_the_status) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    EXPECT_TRUE(says_admitting(status_after([signal] {
      const AdmissionMark mark(kDesk);
      ::raise(signal);
    }))) << signal;
  }
}

TEST(AdmissionMark, a_crash_of_another_thread_or_time_ends_the_process_as_ever) {
  const int beside = status_after([] {
    const AdmissionMark mark(kDesk);
    std::thread([] { std::abort(); }).join();
  });
  EXPECT_FALSE(says_admitting(beside));
  EXPECT_FALSE(WIFEXITED(beside) && WEXITSTATUS(beside) == kSurvived);
  const int behind = status_after([] {
    { const AdmissionMark mark(kDesk); }
    ::raise(SIGSEGV);
  });
  EXPECT_FALSE(says_admitting(behind));
  EXPECT_FALSE(WIFEXITED(behind) && WEXITSTATUS(behind) == kSurvived);
}

}  // namespace
}  // namespace djinn::worker
