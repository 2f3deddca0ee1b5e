// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/latest.h"

#include <gtest/gtest.h>

#include <thread>

namespace djinn::daemon {
namespace {

TEST(LatestTest, the_newest_is_taken_once) {
  Latest<int> latest;
  EXPECT_EQ(latest.take(), nullptr);
  latest.put(std::make_unique<const int>(1));
  latest.put(std::make_unique<const int>(2));
  const auto taken = latest.take();
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(*taken, 2);
  EXPECT_EQ(latest.take(), nullptr);
  latest.put(std::make_unique<const int>(3));  // and freed with the place
}

TEST(LatestTest, a_taker_sees_ever_newer_ones_and_the_last) {
  constexpr int kLast = 50'000;
  Latest<int> latest;
  std::thread maker([&] {
    for (int i = 1; i <= kLast; ++i) latest.put(std::make_unique<const int>(i));
  });
  int seen = 0;
  while (seen < kLast) {
    const auto taken = latest.take();
    if (!taken) continue;
    ASSERT_GT(*taken, seen);
    seen = *taken;
  }
  maker.join();
}

}  // namespace
}  // namespace djinn::daemon
