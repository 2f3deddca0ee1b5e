// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/shares.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace djinn::exec {
namespace {

TEST(Shares, a_thread_alone_takes_all_in_the_order_of_its_own_and_then_others_from_behind) {
  Shares shares(7, 2);
  std::vector<int64_t> taken;
  while (const auto share = shares.take(1)) taken.push_back(*share);
  EXPECT_EQ(taken, (std::vector<int64_t>{3, 4, 5, 6, 2, 1, 0}));
  EXPECT_FALSE(shares.take(0).has_value());
}

TEST(Shares, there_may_be_none_and_fewer_than_threads) {
  Shares none(0, 3);
  EXPECT_FALSE(none.take(2).has_value());
  Shares one(1, 3);
  EXPECT_EQ(one.take(0), 0);
  EXPECT_FALSE(one.take(1).has_value());
}

TEST(Shares, of_several_threads_each_is_taken_once) {
  for (const int64_t threads : {2, 3, 40}) {
    constexpr int64_t kCount = 20'000;
    Shares shares(kCount, threads);
    std::vector<std::atomic<int>> taken(kCount);
    {
      std::vector<std::jthread> pool;
      for (int64_t thread = 0; thread < threads; ++thread) {
        pool.emplace_back([&, thread] {
          while (const auto share = shares.take(thread)) ++taken[static_cast<size_t>(*share)];
        });
      }
    }
    for (const std::atomic<int>& times : taken) EXPECT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace djinn::exec
