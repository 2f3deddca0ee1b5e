// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/spin.h"

#include <sched.h>

namespace djinn {
namespace {

constexpr uint64_t kYieldEveryNs = 2'000;  // a peer that runs on another core answers sooner

}  // namespace

void Spin::restart() {
  began_ns_ = clock_.monotonic_ns();
  yielded_ns_ = began_ns_;
}

bool Spin::wait() {
  const uint64_t now_ns = clock_.monotonic_ns();
  if (now_ns - began_ns_ > limit_ns_) return false;
  if (now_ns - yielded_ns_ > kYieldEveryNs) {
    ::sched_yield();
    yielded_ns_ = clock_.monotonic_ns();
  }
  return true;
}

}  // namespace djinn
