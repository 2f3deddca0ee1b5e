// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/interrupt.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace djinn::client {

Status Interrupt::open() {
  if (bell_.valid() && opened_by_ == ::getpid()) return {};
  opened_by_ = ::getpid();
  bell_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (bell_.valid()) return {};
  return system_error("make a descriptor to be interrupted through", errno);
}

// If the counter is full, the write fails and the bell stays readable, as is wanted.
void Interrupt::raise() noexcept {
  const uint64_t call = call_;
  if (call == 0) return;
  raised_ = call;
  const int before = errno;
  constexpr uint64_t kOnce = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell_.get(), &kOnce, sizeof kOnce);
  errno = before;
}

// If an earlier call was interrupted late, this call wakes once, and finds that it was not meant.
void Interrupt::begin(CancelPredicate asked) noexcept {
  asked_ = std::move(asked);
  call_ = ++last_call_;
}

void Interrupt::end() noexcept {
  call_ = 0;
  asked_ = nullptr;
}

void Interrupt::ask() {
  if (asked_ != nullptr && asked_()) raised_ = call_.load();
}

bool Interrupt::is_raised() const noexcept {
  const uint64_t call = call_.load(std::memory_order_relaxed);
  return call != 0 && raised_.load(std::memory_order_relaxed) == call;
}

void Interrupt::take() noexcept {
  uint64_t rings = 0;
  [[maybe_unused]] const ssize_t read = ::read(bell_.get(), &rings, sizeof rings);
}

}  // namespace djinn::client
