// SPDX-License-Identifier: Apache-2.0

// Deadline: how long somebody waits for djinnd: until a moment, or until they give up themselves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "kernel/base/clock.h"
#include "kernel/base/result.h"

namespace djinn::client {

// Asked several times a second while a call waits, on its thread; true ends the wait. Empty: never.
using CancelPredicate = std::function<bool()>;
// A person who presses Ctrl-C does not notice it.
inline constexpr int kAskedEachMs = 25;

class Deadline {
 public:
  // clock and given_up outlive this.
  Deadline(const Clock& clock, uint64_t wait_ms, const CancelPredicate& given_up)
      : clock_(clock), until_ns_(add(clock.monotonic_ns(), wait_ms)), given_up_(given_up) {}

  [[nodiscard]] uint64_t left_ms() const {
    const uint64_t now_ns = clock_.monotonic_ns();
    return now_ns < until_ns_ ? (until_ns_ - now_ns + kNsPerMs - 1) / kNsPerMs : 0;
  }
  // How long to sleep before check() is to be asked.
  [[nodiscard]] int slice_ms() const {
    return static_cast<int>(std::min<uint64_t>(left_ms(), kAskedEachMs));
  }
  // Errors: kTimeout, kCancelled.
  [[nodiscard]] Status check() const {
    if (given_up_ && given_up_()) {
      return Error{ErrorCode::kCancelled, "The wait for djinnd was given up."};
    }
    if (left_ms() > 0) return {};
    return Error{ErrorCode::kTimeout,
                 "djinnd has taken the connection, but does not answer in time. Look at its log."};
  }

 private:
  // Waits that end later than time does end with it.
  static uint64_t add(uint64_t now_ns, uint64_t wait_ms) {
    const uint64_t most_ms = (UINT64_MAX - now_ns) / kNsPerMs;
    return wait_ms < most_ms ? now_ns + wait_ms * kNsPerMs : UINT64_MAX;
  }

  const Clock& clock_;
  uint64_t until_ns_;
  const CancelPredicate& given_up_;
};

}  // namespace djinn::client
