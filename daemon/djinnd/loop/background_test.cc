// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/background.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <future>
#include <memory>
#include <vector>

namespace djinn::daemon {
namespace {

constexpr size_t kBacklog = 4;
constexpr auto kDeadline = std::chrono::seconds(20);

// What a thread hangs in until it is opened.
struct Gate {
  std::promise<void> begun;
  std::promise<void> open;
  std::shared_future<void> opened{open.get_future()};
};

std::shared_ptr<Gate> close_gate(Background& background) {
  auto gate = std::make_shared<Gate>();
  background.post_surely([gate] {
    gate->begun.set_value();
    gate->opened.wait();
  });
  EXPECT_EQ(gate->begun.get_future().wait_for(kDeadline), std::future_status::ready);
  return gate;
}

TEST(StartThread, has_the_ordinary_priority_whatever_the_loop_has) {
  const int before = ::getpriority(PRIO_PROCESS, 0);
  if (::setpriority(PRIO_PROCESS, 0, -10) != 0) GTEST_SKIP() << "needs CAP_SYS_NICE";
  int priority = -20;
  auto thread = start_thread("ordinary", [&] { priority = ::getpriority(PRIO_PROCESS, 0); });
  ASSERT_TRUE(thread.ok());
  thread->join();
  ::setpriority(PRIO_PROCESS, 0, before);
  EXPECT_EQ(priority, 0);
}

TEST(Background, does_its_work_in_order_and_all_of_it_before_it_ends) {
  const auto done = std::make_shared<std::vector<int>>();
  {
    Background background("test", 1000);
    for (int i = 0; i < 1000; ++i) {
      EXPECT_TRUE(background.post([done, i] { done->push_back(i); }));
    }
  }
  ASSERT_EQ(done->size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ((*done)[static_cast<size_t>(i)], i);
}

TEST(Background, counts_what_finds_no_place_and_loses_nothing_that_must_be_done) {
  const auto done = std::make_shared<std::vector<int>>();
  uint64_t lost = 0;
  {
    Background background("test", kBacklog);
    const auto gate = close_gate(background);
    for (int i = 0; i < 10; ++i) background.post([done, i] { done->push_back(i); });
    background.post_surely([done] { done->push_back(10); });
    EXPECT_EQ(background.backlog(), kBacklog + 1);
    lost = background.lost();
    gate->open.set_value();
  }
  EXPECT_EQ(lost, 10 - kBacklog);
  EXPECT_EQ(*done, (std::vector<int>{0, 1, 2, 3, 10}));
}

TEST(Background, one_that_hangs_is_left_behind) {
  std::shared_ptr<Gate> gate;
  const auto begun = std::chrono::steady_clock::now();
  {
    Background background("test", kBacklog);
    gate = close_gate(background);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kDeadline);
  gate->open.set_value();
}

}  // namespace
}  // namespace djinn::daemon
