// SPDX-License-Identifier: Apache-2.0

// FaultPoints: the places between two writes of surviving state, numbered in the order a process
// passes them. Tests arm one number and the process dies there, as if killed: that is how "killed
// between any two writes" is a property and not a matter of timing. Unarmed, a hit costs a compare.
#pragma once

#include <atomic>
#include <cstdint>

namespace djinn::gc {

class FaultPoints {
 public:
  // Dies at hit number `at` (counted from 1); 0 never dies.
  explicit FaultPoints(uint64_t at = 0) noexcept : at_(at) {}

  // Any thread. Where two hit at once one of them may not count.
  void hit() noexcept {
    const uint64_t now = passed() + 1;
    passed_.store(now, std::memory_order_relaxed);
    if (now == at_) [[unlikely]]
      die();
  }
  [[nodiscard]] uint64_t passed() const noexcept { return passed_.load(std::memory_order_relaxed); }

 private:
  [[noreturn]] static void die() noexcept;

  uint64_t at_;
  std::atomic<uint64_t> passed_ = 0;
};

}  // namespace djinn::gc
