// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/user_thread.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "daemon/djinnd/loop/background.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// A user who sends much soon sends more; starting a thread each time would cost more than the work.
constexpr std::chrono::milliseconds kLinger{1000};

}  // namespace

Status UserThread::post(std::function<void()> work) {
  DJINN_ASSERT(work != nullptr);
  const std::lock_guard lock(mutex_);
  if (!running_) {
    DJINN_TRY(std::thread started,
              start_thread(name_, [self = shared_from_this()] { self->run(); }));
    started.detach();
    running_ = true;
  }
  backlog_.push_back(std::move(work));
  posted_.notify_one();
  return {};
}

bool UserThread::lives() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

void UserThread::run() {
  if (nice_ != 0) {
    const auto self = static_cast<id_t>(::gettid());  // Linux: of this thread alone
    ::setpriority(PRIO_PROCESS, self, ::getpriority(PRIO_PROCESS, self) + nice_);
  }
  std::unique_lock lock(mutex_);
  while (posted_.wait_for(lock, kLinger, [this] { return !backlog_.empty(); })) {
    std::function<void()> work = std::move(backlog_.front());
    backlog_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
  DJINN_ASSERT(running_ && backlog_.empty());
  running_ = false;
}

}  // namespace djinn::daemon
