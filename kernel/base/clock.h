// SPDX-License-Identifier: Apache-2.0

// Clock: the only source of time, so that a simulator can own it (ARCHITECTURE section 9).
#pragma once

#include <cstdint>

namespace djinn {

inline constexpr uint64_t kNsPerMs = 1'000'000;
inline constexpr uint64_t kNsPerSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds of CLOCK_MONOTONIC: for intervals and deadlines. Any thread.
  [[nodiscard]] virtual uint64_t monotonic_ns() const = 0;
  // Nanoseconds since the epoch: for people and for file times. Any thread.
  [[nodiscard]] virtual uint64_t wall_ns() const = 0;
  // Nanoseconds for which the calling thread has had a processor, in the kernel too.
  [[nodiscard]] virtual uint64_t thread_cpu_ns() const = 0;
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] uint64_t monotonic_ns() const override;
  [[nodiscard]] uint64_t wall_ns() const override;
  [[nodiscard]] uint64_t thread_cpu_ns() const override;
};

}  // namespace djinn
