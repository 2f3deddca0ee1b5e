// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/waits.h"

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn::worker {

Pending Waits::await(const Awaited& what) {
  of_step_.what.push_back(what);
  return {};
}

void Waits::suspend(SessionId session) {
  DJINN_ASSERT(!of_step_.what.empty());
  if (!of_step_.came) waiting_[session] = std::move(of_step_.what);
  of_step_ = {};
}

void Waits::take_arrivals() {
  if (!has_arrivals_.exchange(false, std::memory_order_acquire)) return;
  std::vector<Awaited> arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
  }
  const auto has_come = [&](const std::vector<Awaited>& what) {
    return std::ranges::find_first_of(what, arrivals) != what.end();
  };
  std::erase_if(waiting_, [&](const auto& entry) { return has_come(entry.second); });
  for (OfStep* const step : {&of_step_, &aside_}) step->came |= has_come(step->what);
}

void Waits::arrived(const Awaited& what) {
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(what);
  }
  has_arrivals_.store(true, std::memory_order_release);
  wake_();
}

}  // namespace djinn::worker
