// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/deferred_close.h"

#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

void Closer::close(Fd fd) {
  if (!fd.valid()) return;
  {
    const std::lock_guard lock(mutex_);
    backlog_.push_back(std::move(fd));
    ++waiting_;
  }
  start();
}

void Closer::try_again() {
  if (waiting() > 0 && !thread_->lives()) start();
}

void Closer::start() {
  const Status posted = thread_->post([self = shared_from_this()] { self->close_all(); });
  if (!posted) log("descriptors stay open: {}", posted.error().message);
}

Closer::Close Closer::closing() {
  return [self = shared_from_this()](Fd fd) { self->close(std::move(fd)); };
}

SharedFd Closer::own(Fd fd) {
  if (!fd.valid()) return nullptr;
  return {new Fd(std::move(fd)), [self = shared_from_this()](Fd* held) {
            self->close(std::move(*held));
            delete held;
          }};
}

size_t Closer::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

void Closer::close_all() {
  std::unique_lock lock(mutex_);
  while (!backlog_.empty()) {
    Fd next = std::move(backlog_.front());
    backlog_.pop_front();
    lock.unlock();
    close_(std::move(next));
    lock.lock();
    DJINN_ASSERT(waiting_ > backlog_.size());
    --waiting_;
  }
}

std::shared_ptr<Closer> DeferredClose::of(Owner user) {
  tend();
  std::shared_ptr<Closer>& closer = deferred_close_[user];
  if (!closer) closer = std::make_shared<Closer>(close_);
  return closer;
}

size_t DeferredClose::waiting() const {
  size_t count = 0;
  for (const auto& [user, closer] : deferred_close_) count += closer->waiting();
  return count;
}

void DeferredClose::tend() {
  for (const auto& [user, closer] : deferred_close_) closer->try_again();
  std::erase_if(deferred_close_, [](const auto& entry) {
    return entry.second.use_count() == 1 && entry.second->waiting() == 0;
  });
}

}  // namespace djinn::daemon
