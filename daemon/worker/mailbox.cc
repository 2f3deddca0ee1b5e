// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/mailbox.h"

#include <iterator>
#include <utility>

#include "ipc/bell.h"
#include "kernel/base/assert.h"

namespace djinn::worker {

void Mailbox::post(Subject subject, std::function<void()> job) {
  DJINN_ASSERT(job);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({subject, std::move(job)});
  }
  has_mail_.store(true, std::memory_order_release);
  ring();
}

void Mailbox::ring() {
  ipc::ring_submission_bell(bell_);
}

Mailbox::Mail Mailbox::run(const std::function<bool(const Subject&)>& is_used) {
  if (!has_mail()) return Mail::kNone;
  std::vector<Job> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
    has_mail_.store(false, std::memory_order_relaxed);
  }
  auto next = jobs.begin();
  while (next != jobs.end() && !is_used(next->subject)) (next++)->run();
  if (next == jobs.end()) return Mail::kDone;
  const std::lock_guard lock(mutex_);
  jobs_.insert(jobs_.begin(), std::make_move_iterator(next), std::make_move_iterator(jobs.end()));
  has_mail_.store(true, std::memory_order_release);
  return Mail::kWaits;
}

}  // namespace djinn::worker
