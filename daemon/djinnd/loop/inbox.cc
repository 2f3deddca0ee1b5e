// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/inbox.h"

#include "kernel/base/assert.h"

namespace djinn::daemon {

Inbox::Inbox(Loop& loop) : wake_(loop, [this] { take(); }) {
  shared_->wake = &wake_;
}

Inbox::~Inbox() {
  const std::lock_guard lock(shared_->mutex);
  DJINN_ASSERT(shared_->wake == &wake_);
  shared_->wake = nullptr;
}

void Inbox::Sender::send(std::function<void()> call) const {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->wake == nullptr) return;
  shared_->calls.push_back(std::move(call));
  shared_->wake->call();
}

void Inbox::take() {
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard lock(shared_->mutex);
    calls.swap(shared_->calls);
  }
  for (const auto& call : calls) call();
}

}  // namespace djinn::daemon
