// SPDX-License-Identifier: Apache-2.0

// Deadline: how long somebody waits for djinnd: until a moment, or until they give up themselves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel/base/clock.h"
#include "kernel/base/result.h"
#include "libdjinn-client/interrupt.h"

namespace djinn::client {

class Deadline {
 public:
  // clock and given_up outlive this.
  Deadline(const Clock& clock, uint64_t wait_ms)
      : clock_(clock), until_ns_(add(clock.monotonic_ns(), wait_ms)) {}
  Deadline(const Clock& clock, uint64_t wait_ms, const CancelPredicate& given_up)
      : Deadline(clock, wait_ms) {
    given_up_ = &given_up;
  }

  [[nodiscard]] uint64_t left_ms() const {
    const uint64_t now_ns = clock_.monotonic_ns();
    return now_ns < until_ns_ ? (until_ns_ - now_ns + kNsPerMs - 1) / kNsPerMs : 0;
  }
  // How long to sleep before check() is to be asked.
  [[nodiscard]] int slice_ms() const {
    return static_cast<int>(std::min<uint64_t>(left_ms(), kAskMs));
  }
  // Errors: kTimeout, kCancelled.
  [[nodiscard]] Status check() const {
    if (given_up_ != nullptr && *given_up_ && (*given_up_)()) {
      return Error{ErrorCode::kCancelled, "The wait for djinnd was given up."};
    }
    if (left_ms() > 0) return {};
    return Error{ErrorCode::kTimeout,
                 "djinnd has taken the connection, but does not answer in time: it is stopped or "
                 "busy. Look at its log, and at its process with 'ps -o stat= -C djinnd', where T "
                 "means stopped. Then repeat this."};
  }

 private:
  // Waits that end later than time does end with it.
  static uint64_t add(uint64_t now_ns, uint64_t wait_ms) {
    const uint64_t most_ms = (UINT64_MAX - now_ns) / kNsPerMs;
    return wait_ms < most_ms ? now_ns + wait_ms * kNsPerMs : UINT64_MAX;
  }

  const Clock& clock_;
  uint64_t until_ns_;
  const CancelPredicate* given_up_ = nullptr;
};

}  // namespace djinn::client
