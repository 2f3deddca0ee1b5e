// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace djinn::daemon {
namespace {

constexpr uid_t kFlooder = 1;
constexpr uid_t kNeighbour = 2;

class ClockByHand final : public Clock {
 public:
  [[nodiscard]] uint64_t monotonic_ns() const override { return now_ns; }
  [[nodiscard]] uint64_t wall_ns() const override { return now_ns; }
  uint64_t now_ns = 0;
};

constexpr int kForEver = 1 << 20;  // messages

class TurnsTest : public ::testing::Test {
 protected:
  using Speakers = std::vector<std::shared_ptr<Turns::Speaker>>;

  // Of so many messages each; which speaker said what goes to heard_.
  Speakers speakers(uid_t user, int count, int messages, size_t bytes = 1) {
    Speakers made;
    for (int i = 0; i < count; ++i) {
      made.push_back(std::make_shared<Turns::Speaker>(Turns::Speaker{user, {}}));
      made[i]->hear = [this, user, i, bytes, left = messages]() mutable {
        if (left-- <= 0) return size_t{0};
        heard_.emplace_back(user, i);
        return bytes;
      };
      turns_.note(made[i]);
    }
    return made;
  }
  [[nodiscard]] auto heard_of(uid_t user) const {
    return std::ranges::count(heard_, user, &std::pair<uid_t, int>::first);
  }

  ClockByHand clock_;
  const Share share_;
  Turns turns_{clock_, share_};
  std::vector<std::pair<uid_t, int>> heard_;
};

TEST_F(TurnsTest, a_user_is_heard_in_the_next_turn_however_many_sessions_another_floods_with) {
  const auto flood = speakers(kFlooder, 20, kForEver);
  for (int turn = 0; turn < 100; ++turn) {
    const auto neighbour = speakers(kNeighbour, 1, 1);
    heard_.clear();
    turns_.take();
    EXPECT_EQ(heard_of(kFlooder), share_.messages) << "a share, and no more";
    EXPECT_EQ(heard_of(kNeighbour), 1);
  }
}

TEST_F(TurnsTest, sessions_of_one_user_are_heard_one_after_the_other) {
  const auto flood = speakers(kFlooder, 20, kForEver);
  for (int turn = 0; turn < 100; ++turn) turns_.take();
  for (size_t i = 0; i < heard_.size(); ++i) EXPECT_EQ(heard_[i].second, i % 20);
}

TEST_F(TurnsTest, what_is_left_is_heard_in_later_turns) {
  const auto flood = speakers(kFlooder, 20, 10);
  for (int turn = 0; turn < 100; ++turn) turns_.take();
  EXPECT_EQ(heard_of(kFlooder), 200);
}

TEST_F(TurnsTest, one_that_was_silent_is_heard_again_when_it_is_noted) {
  bool speaks = false;
  const auto speaker = std::make_shared<Turns::Speaker>(
      Turns::Speaker{kFlooder, [&] { return std::exchange(speaks, false) ? size_t{1} : 0; }});
  for (int i = 0; i < 3; ++i) {
    turns_.note(speaker);
    speaks = i != 0;
    turns_.take();
    EXPECT_FALSE(speaks);
  }
}

TEST_F(TurnsTest, a_share_ends_with_its_bytes) {
  const auto flood = speakers(kFlooder, 20, kForEver, share_.bytes / 2);
  turns_.take();
  EXPECT_EQ(heard_of(kFlooder), 2);
}

TEST_F(TurnsTest, a_share_ends_with_its_time_after_one_message_at_least) {
  const auto slow = std::make_shared<Turns::Speaker>(Turns::Speaker{kFlooder, [this] {
                                                                      clock_.now_ns += share_.ns;
                                                                      return size_t{1};
                                                                    }});
  turns_.note(slow);
  const auto flood = speakers(kFlooder, 1, kForEver);
  const auto neighbour = speakers(kNeighbour, 1, 1);
  turns_.take();
  EXPECT_EQ(heard_of(kFlooder), 0) << "it waits for the next turn";
  EXPECT_EQ(heard_of(kNeighbour), 1);
  turns_.take();
  EXPECT_GT(heard_of(kFlooder), 0);
}

TEST_F(TurnsTest, one_that_has_gone_is_not_heard) {
  speakers(kFlooder, 1, kForEver).clear();
  turns_.take();
  EXPECT_TRUE(heard_.empty());
}

}  // namespace
}  // namespace djinn::daemon
