// SPDX-License-Identifier: Apache-2.0

// HangWatchdog: sees that no worker stands still while a session of its user has work.
//
// How long that takes is told in the worker's own time (OwnTime): who lacks a processor does not
// stand still. While nothing runs it looks once in a whole timeout, and without sessions never.
#pragma once

#include <cstdint>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "daemon/djinnd/workers/domains.h"

namespace djinn::daemon {

class HangWatchdog {
 public:
  HangWatchdog(Loop& loop, Domains& domains, Sessions& sessions, uint64_t timeout_ms);

  // There is a session.
  void watch();
  void stop() { timer_.stop(); }

 private:
  void look();
  void look_again_after(uint64_t ms);

  Domains& domains_;
  Sessions& sessions_;
  uint64_t timeout_ms_;
  uint64_t due_ms_ = 0;  // how long after the look before the next one is to come
  Timer timer_;
};

}  // namespace djinn::daemon
