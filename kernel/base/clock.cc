// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/clock.h"

#include <time.h>

namespace djinn {
namespace {

uint64_t read_clock_ns(clockid_t id) {
  timespec now{};
  ::clock_gettime(id, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

uint64_t SystemClock::monotonic_ns() const {
  return read_clock_ns(CLOCK_MONOTONIC);
}
uint64_t SystemClock::wall_ns() const {
  return read_clock_ns(CLOCK_REALTIME);
}
uint64_t SystemClock::thread_cpu_ns() const {
  return read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

}  // namespace djinn
