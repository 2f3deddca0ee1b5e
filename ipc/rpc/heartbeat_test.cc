// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/heartbeat.h"

#include <gtest/gtest.h>

namespace djinn::rpc {
namespace {

TEST(Silence, lasts_from_what_was_heard_last_and_no_shorter) {
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  kj::TimerImpl timer(kj::origin<kj::TimePoint>());
  Silence silence(timer, 15 * kj::SECONDS);
  auto lasts = silence.lasts();
  const auto is_over_at = [&](int second) {
    timer.advanceTo(kj::origin<kj::TimePoint>() + second * kj::SECONDS);
    return lasts.poll(scope);
  };
  EXPECT_FALSE(is_over_at(14));
  silence.heard();
  EXPECT_FALSE(is_over_at(15));
  EXPECT_FALSE(is_over_at(28));
  EXPECT_TRUE(is_over_at(29));
}

}  // namespace
}  // namespace djinn::rpc
