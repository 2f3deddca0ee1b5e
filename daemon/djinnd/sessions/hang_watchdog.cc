// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/hang_watchdog.h"

#include <algorithm>

namespace djinn::daemon {
namespace {

constexpr uint64_t kLooksATimeout = 8;  // while anything runs
constexpr uint64_t kLookMsMin = 20;

}  // namespace

HangWatchdog::HangWatchdog(Loop& loop, Domains& domains, Sessions& sessions, uint64_t timeout_ms)
    : domains_(domains),
      sessions_(sessions),
      timeout_ms_(timeout_ms),
      timer_(loop, [this] { look(); }) {}

void HangWatchdog::watch() {
  if (!timer_.active()) look_again_after(timeout_ms_);
}

void HangWatchdog::look_again_after(uint64_t ms) {
  due_ms_ = ms;
  timer_.start_once(ms);
}

void HangWatchdog::look() {
  bool busy = false;
  for (const auto& [key, worker] : domains_.all()) {
    busy |= worker->look(sessions_.activity_of(key), due_ms_);
  }
  if (sessions_.all().empty()) return;
  look_again_after(busy ? std::max(kLookMsMin, timeout_ms_ / kLooksATimeout) : timeout_ms_);
}

}  // namespace djinn::daemon
