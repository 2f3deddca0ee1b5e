// SPDX-License-Identifier: Apache-2.0

// Drain: djinnd takes in nobody new, for as long as an administrator likes, or until it ends.
//
//   draining     no new session and no new model; who is here goes on
//   winding up   djinnd is to end: it drains, and ends when no run is in flight or their time is
//                over. There is no way back
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/host/service.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/sessions/sessions.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

class Drain {
 public:
  // timeout_ms: for runs in flight at the end.
  Drain(Loop& loop, const Clock& clock, Sessions& sessions, Events& events, Service& service,
        uint64_t timeout_ms);

  void set_timeout(uint64_t timeout_ms) { timeout_ms_ = timeout_ms; }
  void set(bool draining, std::optional<Owner> asked_by = {});
  [[nodiscard]] bool draining() const { return sessions_.draining(); }
  // Stops the loop when no run is in flight or their time is over; asked again, at once.
  void wind_up();
  // The loop is about to end.
  void stop() { timer_.stop(); }

 private:
  void look();

  Loop& loop_;
  const Clock& clock_;
  Sessions& sessions_;
  Events& events_;
  Service& service_;
  uint64_t timeout_ms_;
  std::optional<uint64_t> wind_up_until_ns_;
  Timer timer_;
};

}  // namespace djinn::daemon
