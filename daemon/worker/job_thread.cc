// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/job_thread.h"

#include <utility>

#include "kernel/base/assert.h"

namespace djinn::worker {

JobThread::JobThread() : thread_([this] { work(); }) {}

JobThread::~JobThread() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  arrived_.notify_all();
  thread_.join();
}

void JobThread::post(std::function<void()> job) {
  DJINN_ASSERT(job);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  arrived_.notify_one();
}

void JobThread::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    arrived_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
    if (closing_) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace djinn::worker
