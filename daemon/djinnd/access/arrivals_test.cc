// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/arrivals.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "ipc/limits.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr uid_t kFlooder = 1;
constexpr uid_t kNeighbourUid = 2;

class ArrivalsTest : public ::testing::Test, private Arrivals::Door {
 protected:
  void serve(Fd, const Visitor& visitor) override {
    served_.push_back(visitor.peer.uid);
    clock_.now_ns += cost_ns_;
  }
  void turn_away(Fd, const Visitor& visitor, const Error&) override {
    turned_away_.push_back(visitor.peer.uid);
    clock_.now_ns += cost_ns_;
  }

  void connect(uid_t user) { arrivals_.connected(socket(), peer(user)); }
  static Visitor peer(uid_t user) { return {{.pid = 1, .uid = user, .groups = {}}}; }
  static Fd socket() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
  [[nodiscard]] auto served(uid_t user) const { return std::ranges::count(served_, user); }
  [[nodiscard]] auto turned_away(uid_t user) const {
    return std::ranges::count(turned_away_, user);
  }
  // How long the user rests: nothing of theirs is done in so many ns.
  [[nodiscard]] uint64_t rest_of(uid_t user) {
    connect(user);
    const auto before = served(user);
    const uint64_t rest_ns = turns_.take().value_or(0);
    return served(user) > before ? 0 : rest_ns;
  }

  ClockByHand clock_;
  const Share share_;
  Turns turns_{clock_, share_};
  Arrivals arrivals_{turns_, *this};
  std::vector<uid_t> served_;
  std::vector<uid_t> turned_away_;
  uint64_t cost_ns_ = 0;  // of an arrival
};

TEST_F(ArrivalsTest, whoever_connects_is_served_in_the_next_turn_however_many_another_user_makes) {
  for (int turn = 0; turn < 100; ++turn) {
    for (uint32_t i = 0; i < share_.messages; ++i) connect(kFlooder);
    connect(kFlooder);
    connect(kNeighbourUid);
    turns_.take();
    EXPECT_EQ(served(kNeighbourUid), turn + 1);
    EXPECT_LE(served(kFlooder), share_.messages * (turn + 1)) << "a share, and no more";
  }
}

TEST_F(ArrivalsTest, of_one_user_so_many_wait_and_the_next_is_turned_away_and_nobody_elses) {
  for (uint32_t i = 0; i < limits::kSessionsPerUser; ++i) connect(kFlooder);
  EXPECT_EQ(turned_away(kFlooder), 0);
  connect(kFlooder);
  EXPECT_EQ(turned_away(kFlooder), 1);
  connect(kNeighbourUid);
  EXPECT_EQ(turned_away(kNeighbourUid), 0);
}

TEST_F(ArrivalsTest, what_an_arrival_costs_in_its_turn_is_its_users) {
  cost_ns_ = 2 * share_.saved_ns;
  connect(kFlooder);
  turns_.take();
  EXPECT_GT(rest_of(kFlooder), 0u);
  EXPECT_EQ(rest_of(kNeighbourUid), 0u);
}

TEST_F(ArrivalsTest, who_is_turned_away_at_once_pays_for_that_and_the_neighbour_is_served) {
  for (uint32_t i = 0; i < limits::kSessionsPerUser; ++i) connect(kFlooder);
  cost_ns_ = share_.saved_ns / 4;
  for (int i = 0; i < 8; ++i) connect(kFlooder);
  EXPECT_EQ(turned_away(kFlooder), 8);
  cost_ns_ = 0;
  connect(kNeighbourUid);
  const auto next_ns = turns_.take();
  EXPECT_EQ(served(kFlooder), 0) << "they rest: what waits of theirs is not done";
  EXPECT_GT(next_ns.value_or(0), 0u);
  EXPECT_EQ(served(kNeighbourUid), 1);
}

TEST_F(ArrivalsTest, who_finds_no_descriptor_left_pays_for_being_told) {
  cost_ns_ = share_.saved_ns;
  arrivals_.too_many(socket(), peer(kFlooder));
  cost_ns_ = 0;
  EXPECT_EQ(turned_away(kFlooder), 1);
  EXPECT_GT(rest_of(kFlooder), 0u);
  EXPECT_EQ(rest_of(kNeighbourUid), 0u);
}

TEST_F(ArrivalsTest, over_time_refusals_take_no_more_than_their_users_part) {
  cost_ns_ = share_.ns / 8;
  const uint64_t began_ns = clock_.now_ns;
  for (int turn = 0; turn < 1000; ++turn) {
    while (turns_.owed_to(Owner::of_user(kFlooder)) < limits::kSessionsPerUser) connect(kFlooder);
    const auto before = served(kNeighbourUid);
    connect(kNeighbourUid);
    const auto next_ns = turns_.take();
    EXPECT_EQ(served(kNeighbourUid), before + 1);
    clock_.now_ns += next_ns.value_or(0);
  }
  const uint64_t passed_ns = clock_.now_ns - began_ns;
  const uint64_t taken_ns = static_cast<uint64_t>(served(kFlooder)) * cost_ns_;
  EXPECT_LE(taken_ns, passed_ns / share_.one_in + share_.saved_ns + share_.ns);
}

}  // namespace
}  // namespace djinn::daemon
