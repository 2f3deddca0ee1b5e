// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/admission_mark.h"

#include <signal.h>
#include <unistd.h>

#include <array>

#include "kernel/base/assert.h"

namespace djinn::worker {
namespace {

constexpr std::array kCrashes{SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
constexpr size_t kStackBytes = size_t{64} << 10;

thread_local int status_of_crash = 0;  // where one is marked
// These were the handlers before: a sanitizer's, maybe.
std::array<struct sigaction, kCrashes.size()> former;

// This runs on a thread that crashed, so it does nothing but what is safe in a signal handler.
void crashed(int signal, siginfo_t* info, void*) {
  if (status_of_crash != 0) ::_exit(status_of_crash);
  for (size_t i = 0; i < kCrashes.size(); ++i) {
    if (kCrashes[i] == signal) ::sigaction(signal, &former[i], nullptr);
  }
  // A fault comes again as this returns and meets the former handler; a signal that was sent does
  // not.
  if (info->si_code <= 0) ::raise(signal);
}

}  // namespace

void AdmissionMark::install() {
  for (size_t i = 0; i < kCrashes.size(); ++i) {
    struct sigaction action {};
    action.sa_sigaction = &crashed;
    action.sa_flags = SA_ONSTACK | SA_SIGINFO;
    DJINN_ASSERT(::sigaction(kCrashes[i], &action, &former[i]) == 0);
  }
}

AdmissionMark::AdmissionMark(ipc::AdmissionDesk desk) : stack_(kStackBytes) {
  stack_t stack{};
  stack.ss_sp = stack_.data();
  stack.ss_size = stack_.size();
  DJINN_ASSERT(status_of_crash == 0 && ::sigaltstack(&stack, &former_) == 0);
  status_of_crash = ipc::status_of_crash_at(desk);
}

AdmissionMark::~AdmissionMark() {
  DJINN_ASSERT(status_of_crash != 0);
  status_of_crash = 0;
  DJINN_ASSERT(::sigaltstack(&former_, nullptr) == 0);
}

}  // namespace djinn::worker
