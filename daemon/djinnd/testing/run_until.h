// SPDX-License-Identifier: Apache-2.0

// run_until: turns a test's own loop.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "daemon/djinnd/loop/loop.h"

namespace djinn::daemon::testing {

// Runs the loop until the condition holds; what: it, for who reads that it never did.
inline void run_until(Loop& loop, const char* what, const std::function<bool()>& condition) {
  constexpr uint64_t kDeadlineMs = 60'000;
  bool late = false;
  Timer deadline(loop, [&] { late = true; });
  deadline.start_once(kDeadlineMs);
  while (!condition() && !late) uv_run(loop.raw(), UV_RUN_ONCE);
  EXPECT_FALSE(late) << "not in time: " << what;
}

}  // namespace djinn::daemon::testing
