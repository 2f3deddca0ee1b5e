// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/progress_watch.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace djinn::ctl {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{50};

// Lets this thread take the signal that ends a command in time, or not. Its handler writes to
// stderr, so it belongs to the thread that writes there.
void take_alarms(bool take) {
  sigset_t alarms;
  ::sigemptyset(&alarms);
  ::sigaddset(&alarms, SIGALRM);
  ::pthread_sigmask(take ? SIG_UNBLOCK : SIG_BLOCK, &alarms, nullptr);
}

// If something fails here, nothing is shown: whoever waits for the answer will be told, if it
// concerns them.
void watch(const std::stop_token& stop, const Invocation& invocation, Progress& progress,
           const ProgressWatch::Look& look) {
  const auto client = observe(invocation);
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    const auto seen = client ? look(**client) : std::nullopt;
    if (seen) progress.show(*seen);
    stopped.wait_for(lock, stop, kBetweenLooks, [] { return false; });
  }
}

}  // namespace

ProgressWatch::ProgressWatch(const Invocation& invocation, const std::string& label, Look look) {
  const Terminal terminal = terminal_of(STDERR_FILENO);
  if (!terminal.rewrites_lines || invocation.quiet) return;
  take_alarms(false);
  thread_ = std::jthread(
      [invocation, label, terminal, look = std::move(look)](const std::stop_token& stop) {
        take_alarms(true);
        Progress progress(label, terminal);
        watch(stop, invocation, progress, look);
      });
}

ProgressWatch::~ProgressWatch() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  take_alarms(true);
}

}  // namespace djinn::ctl
