// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/front/drain.h"

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// djinnd looks this often whether the runs in flight have ended, and asks systemd for this much
// more time at each look. That is enough if a look comes late.
constexpr uint64_t kLookMs = 100;
constexpr uint64_t kExtendMs = 5000;
static_assert(kExtendMs > kLookMs);

}  // namespace

Drain::Drain(Loop& loop, const Clock& clock, Sessions& sessions, Events& events, Service& service,
             uint64_t timeout_ms)
    : loop_(loop),
      clock_(clock),
      sessions_(sessions),
      events_(events),
      service_(service),
      timeout_ms_(timeout_ms),
      timer_(loop, [this] { look(); }) {}

void Drain::set(bool draining, std::optional<Owner> asked_by) {
  if (this->draining() == draining) return;
  sessions_.set_draining(draining);
  Event event{draining ? EventKind::kDraining : EventKind::kResumed,
              draining ? "draining: no new session, no new model" : "resumed"};
  if (asked_by) event.by = events_.user_text(*asked_by);
  events_.emit(std::move(event));
  service_.changed();
  DJINN_ASSERT(this->draining() == draining);
}

void Drain::wind_up() {
  if (wind_up_until_ns_ || timeout_ms_ == 0 || !sessions_.any_runs()) return loop_.stop();
  wind_up_until_ns_ = clock_.monotonic_ns() + timeout_ms_ * 1'000'000;
  set(true);
  look();
}

void Drain::look() {
  DJINN_ASSERT(wind_up_until_ns_);
  if (!sessions_.any_runs() || clock_.monotonic_ns() >= *wind_up_until_ns_) return loop_.stop();
  service_.extend_timeout(kExtendMs);
  timer_.start_once(kLookMs);
}

}  // namespace djinn::daemon
