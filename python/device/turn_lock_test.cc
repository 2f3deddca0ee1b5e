// SPDX-License-Identifier: Apache-2.0

#include "python/device/turn_lock.h"

#include <gmock/gmock.h>
#include <unistd.h>

namespace djinn::device {
namespace {

// A thread that waits for itself waits for ever: the process ends then.
class TurnLockTest : public ::testing::Test {
 protected:
  static constexpr unsigned kHungS = 60;

  TurnLockTest() { ::alarm(kHungS); }
  ~TurnLockTest() override { ::alarm(0); }

  TurnLock lock_;
};

TEST_F(TurnLockTest, a_thread_that_has_it_and_asks_once_more_is_told) {
  const std::lock_guard held(lock_);
  EXPECT_FALSE(lock_.try_lock());
  try {
    lock_.lock();
    FAIL() << "it has it twice";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                ::testing::HasSubstr("used from inside of one of its own calls"));
  }
}

TEST_F(TurnLockTest, who_has_given_it_back_may_have_it_again) {
  for (int i = 0; i < 2; ++i) {
    const std::lock_guard held(lock_);
  }
  ASSERT_TRUE(lock_.try_lock());
  lock_.unlock();
}

TEST_F(TurnLockTest, another_thread_waits_for_its_turn) {
  int turns = 0;
  lock_.lock();
  std::thread other([&] {
    const std::lock_guard held(lock_);
    ++turns;
  });
  EXPECT_EQ(++turns, 1);
  lock_.unlock();
  other.join();
  EXPECT_EQ(turns, 2);
}

}  // namespace
}  // namespace djinn::device
