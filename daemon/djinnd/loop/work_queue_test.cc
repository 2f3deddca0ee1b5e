// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/work_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "daemon/djinnd/testing/run_until.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

Fd some_memory() {
  return *pal::make_memfd("held", 1 << 20);
}

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}

TEST(WorkQueue, says_in_order_and_on_the_loop_what_is_closed) {
  Loop loop;
  WorkQueue queue(loop, "test");
  std::vector<int> told;
  std::vector<std::vector<Fd>> memories(3);  // all there before one closes: each has its number
  for (std::vector<Fd>& memory : memories) memory.push_back(some_memory());
  for (int i = 0; i < 3; ++i) {
    std::vector<Fd>& memory = memories[static_cast<size_t>(i)];
    const int number = memory[0].get();
    queue.close(std::move(memory), [&, i, number, thread = std::this_thread::get_id()] {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      EXPECT_FALSE(is_open(number));
      told.push_back(i);
    });
    EXPECT_EQ(told.size(), 0u) << "not before the loop comes to it";
  }
  testing::run_until(loop, "all are told", [&] { return told.size() == 3; });
  EXPECT_EQ(told, (std::vector{0, 1, 2}));
}

TEST(WorkQueue, closes_what_is_left_when_it_ends) {
  Loop loop;
  std::vector<Fd> memory;
  memory.push_back(some_memory());
  const int number = memory[0].get();
  {
    WorkQueue queue(loop, "test");
    queue.close(std::move(memory), [] { ADD_FAILURE() << "nobody listens any more"; });
  }
  EXPECT_FALSE(is_open(number));
}

TEST(WorkQueue, hands_over_what_work_gives) {
  Loop loop;
  WorkQueue queue(loop, "test");
  std::unique_ptr<int> got;
  const auto here = std::this_thread::get_id();
  queue.run(
      [here] {
        EXPECT_NE(std::this_thread::get_id(), here);
        return std::make_unique<int>(7);
      },
      [&](std::unique_ptr<int> given) {
        EXPECT_EQ(std::this_thread::get_id(), here);
        got = std::move(given);
      });
  EXPECT_EQ(got, nullptr);
  testing::run_until(loop, "it is handed over", [&] { return got != nullptr; });
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(*got, 7);
}

}  // namespace
}  // namespace djinn::daemon
