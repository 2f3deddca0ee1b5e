// SPDX-License-Identifier: Apache-2.0

// Spin: a bounded wait for a peer, a process or a thread, that answers soon.
//
// The peer may have been woken on the very core that spins: the kernel likes to wake a task where
// its waker runs. So a spin gives the core away every few microseconds; where nobody wants it, that
// costs a fraction of one.
#pragma once

#include <cstdint>

#include "kernel/base/clock.h"

namespace djinn {

class Spin {
 public:
  // clock outlives this.
  Spin(const Clock& clock, uint64_t limit_ns) : clock_(clock), limit_ns_(limit_ns) { restart(); }

  // Something came: the limit begins anew.
  void restart();
  // One of the two was just woken by the other: the next turn gives the core away at once.
  void share_core() { yielded_ns_ = 0; }
  // One turn of waiting; false when the limit is reached, and it is time to sleep.
  [[nodiscard]] bool wait();

 private:
  const Clock& clock_;
  uint64_t limit_ns_;
  uint64_t began_ns_ = 0;
  uint64_t yielded_ns_ = 0;
};

}  // namespace djinn
