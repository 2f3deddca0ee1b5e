// SPDX-License-Identifier: Apache-2.0

#include "python/device/idle.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>

namespace djinn::device {
namespace {

// This is longer than Python takes from one operator to the next, and shorter than anybody notices.
constexpr std::chrono::milliseconds kIdle(20);

// A thread inherits the signal mask of its maker, and signals are for Python's threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

void IdleWatch::wake() {
  if (stopped_) return;
  awake_ = true;
  if (thread_.joinable()) return changed_.notify_one();
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { watch(); });
}

void IdleWatch::watch() {
  pthread_setname_np(pthread_self(), "djinn-idle");
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (!awake_) {
      changed_.wait(lock);
      continue;
    }
    const uint64_t seen = touched_;
    changed_.wait_for(lock, kIdle, [this] { return stopped_; });
    if (stopped_ || touched_ != seen) continue;
    awake_ = false;
    idle_();
  }
}

void IdleWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace djinn::device
