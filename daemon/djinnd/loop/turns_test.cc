// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/base/clock_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr Owner kFlooder = Owner::of_user(1);
constexpr Owner kNeighbour = Owner::of_user(2);

constexpr int kForEver = 1 << 20;  // messages

class TurnsTest : public ::testing::Test {
 protected:
  using Speakers = std::vector<std::shared_ptr<Turns::Speaker>>;

  std::shared_ptr<Turns::Speaker> speaker(Owner user, Turns::Hear hear) {
    auto made = std::make_shared<Turns::Speaker>(Turns::Speaker{user, std::move(hear), {}});
    made->rest_changed = [this, user, &rests = made->rests] { deaf_[user] += rests ? 1 : -1; };
    return made;
  }

  // Of so many messages each; which speaker said what goes to heard_.
  Speakers speakers(Owner user, int count, int messages, size_t bytes = 1) {
    Speakers made;
    for (int i = 0; i < count; ++i) {
      made.push_back(speaker(user, [this, user, i, bytes, left = messages]() mutable {
        if (left-- <= 0) return size_t{0};
        heard_.emplace_back(user, i);
        clock_.now_ns += cost_ns_;
        return bytes;
      }));
      turns_.note(made[i]);
    }
    return made;
  }
  [[nodiscard]] auto heard_of(Owner user) const {
    return std::ranges::count(heard_, user, &std::pair<Owner, int>::first);
  }

  ClockByHand clock_;
  const Share share_;
  Turns turns_{clock_, share_};
  std::vector<std::pair<Owner, int>> heard_;
  std::map<Owner, int> deaf_;  // speakers that are not listened to
  uint64_t cost_ns_ = 0;       // of a message
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
  const auto silent =
      speaker(kFlooder, [&] { return std::exchange(speaks, false) ? size_t{1} : 0; });
  for (int i = 0; i < 3; ++i) {
    turns_.note(silent);
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
  const auto slow = speaker(kFlooder, [this] {
    clock_.now_ns += share_.ns;
    return size_t{1};
  });
  turns_.note(slow);
  const auto flood = speakers(kFlooder, 1, kForEver);
  const auto neighbour = speakers(kNeighbour, 1, 1);
  turns_.take();
  EXPECT_EQ(heard_of(kFlooder), 0) << "it waits for the next turn";
  EXPECT_EQ(heard_of(kNeighbour), 1);
  turns_.take();
  EXPECT_GT(heard_of(kFlooder), 0);
}

TEST_F(TurnsTest, over_time_a_flooder_gets_their_part_of_it_and_a_neighbour_is_heard_each_turn) {
  cost_ns_ = share_.ns / 8;
  const auto flood = speakers(kFlooder, 20, kForEver);
  const uint64_t began_ns = clock_.now_ns;
  for (int turn = 0; turn < 1000; ++turn) {
    for (const auto& speaker : flood) turns_.note(speaker);  // as their sockets are readable
    const auto neighbour = speakers(kNeighbour, 1, 1);
    const auto before = heard_of(kNeighbour);
    const auto next_ns = turns_.take();
    EXPECT_EQ(heard_of(kNeighbour), before + 1);
    clock_.now_ns += next_ns.value_or(0);
  }
  const uint64_t passed_ns = clock_.now_ns - began_ns;
  const uint64_t taken_ns = static_cast<uint64_t>(heard_of(kFlooder)) * cost_ns_;
  EXPECT_NEAR(static_cast<double>(taken_ns), static_cast<double>(passed_ns) / share_.one_in,
              static_cast<double>(share_.saved_ns + share_.ns));
  EXPECT_EQ(deaf_[kNeighbour], 0);
}

TEST_F(TurnsTest, who_rests_is_not_listened_to_until_all_they_said_is_heard) {
  cost_ns_ = 2 * share_.saved_ns;
  const auto flood = speakers(kFlooder, 3, 10);
  std::optional<uint64_t> next_ns = turns_.take();
  ASSERT_TRUE(next_ns) << "there is more, and nobody will be noted for it";
  for (const auto& speaker : flood) turns_.note(speaker);
  EXPECT_EQ(deaf_[kFlooder], 3);
  const auto heard = heard_of(kFlooder);
  EXPECT_EQ(turns_.take(), next_ns) << "nothing is done meanwhile";
  EXPECT_EQ(heard_of(kFlooder), heard);
  for (; next_ns; next_ns = turns_.take()) clock_.now_ns += *next_ns;
  EXPECT_EQ(heard_of(kFlooder), 30);
  EXPECT_EQ(deaf_[kFlooder], 0);
}

TEST_F(TurnsTest, who_was_deaf_is_heard_to_the_end_however_late_the_next_turn_comes) {
  const auto first = speaker(kFlooder, [this, left = 1]() mutable {
    clock_.now_ns += left > 0 ? share_.saved_ns + share_.ns : 0;
    return static_cast<size_t>(left-- > 0);
  });
  turns_.note(first);
  const auto flood = speakers(kFlooder, 40, 3);
  std::optional<uint64_t> next_ns = turns_.take();
  for (const auto& speaker : flood) turns_.note(speaker);
  EXPECT_EQ(deaf_[kFlooder], 40);
  for (; next_ns; next_ns = turns_.take()) clock_.now_ns += *next_ns + share_.ns;
  EXPECT_EQ(heard_of(kFlooder), 120);
  EXPECT_EQ(deaf_[kFlooder], 0);
}

TEST_F(TurnsTest, what_was_done_for_a_user_outside_of_a_turn_is_of_their_time) {
  {
    const Turns::Bill bill(turns_, kFlooder);
    clock_.now_ns += 2 * share_.saved_ns;
  }
  const auto flood = speakers(kFlooder, 1, 1);
  const auto neighbour = speakers(kNeighbour, 1, 1);
  ASSERT_TRUE(turns_.take());
  EXPECT_EQ(heard_of(kFlooder), 0);
  EXPECT_EQ(heard_of(kNeighbour), 1);
}

TEST_F(TurnsTest, what_many_messages_of_a_user_waited_for_is_done_in_that_users_turns) {
  int done = 0;
  for (int i = 0; i < 640; ++i) {
    turns_.owe(kFlooder, [&] {
      ++done;
      clock_.now_ns += share_.ns / 8;
    });
  }
  const auto flood = speakers(kFlooder, 1, 1);
  const auto neighbour = speakers(kNeighbour, 1, 1);
  std::optional<uint64_t> next_ns = turns_.take();
  EXPECT_EQ(done, 8) << "a share, and no more";
  EXPECT_EQ(turns_.owed_to(kFlooder), 632u);
  EXPECT_EQ(turns_.owed_to(kNeighbour), 0u);
  EXPECT_EQ(heard_of(kNeighbour), 1);
  EXPECT_EQ(heard_of(kFlooder), 0) << "after what is owed";
  for (; next_ns; next_ns = turns_.take()) clock_.now_ns += *next_ns;
  EXPECT_EQ(done, 640);
  EXPECT_EQ(heard_of(kFlooder), 1);
}

TEST_F(TurnsTest, nobody_rests_for_a_message_in_which_the_process_stood_still) {
  const auto stopped = speaker(kFlooder, [this, left = 2]() mutable {
    clock_.stand_still(3'600'000'000'000);  // an hour, in a debugger or a freezer
    return static_cast<size_t>(left-- > 0);
  });
  turns_.note(stopped);
  EXPECT_EQ(turns_.take(), 0u) << "it may have more";
}

TEST_F(TurnsTest,
       one_long_message_is_made_up_for_by_a_rest_of_its_measure_and_by_none_without_end) {
  for (const uint64_t ns : {share_.rest_ns / 8, 100 * share_.rest_ns}) {
    const auto slow = speaker(kFlooder, [&, left = 1]() mutable {
      clock_.now_ns += left > 0 ? ns : 0;
      return static_cast<size_t>(left-- > 0);
    });
    turns_.note(slow);
    const uint64_t rest_ns = std::min(ns * (share_.one_in - 1) - share_.saved_ns, share_.rest_ns);
    EXPECT_EQ(turns_.take(), rest_ns);
    clock_.now_ns += rest_ns + share_.saved_ns;
    EXPECT_EQ(turns_.take(), std::nullopt);
  }
}

TEST_F(TurnsTest, one_that_has_gone_is_not_heard) {
  speakers(kFlooder, 1, kForEver).clear();
  turns_.take();
  EXPECT_TRUE(heard_.empty());
}

}  // namespace
}  // namespace djinn::daemon
