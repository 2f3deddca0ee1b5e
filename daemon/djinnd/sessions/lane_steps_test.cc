// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sessions/lane_steps.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "daemon/djinnd/sessions/workers_state_for_tests.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kLongNs = LaneSteps::kLongMs * 1'000'000;
constexpr SessionId kOne{1};
constexpr SessionId kTwo{2};
constexpr WorkerKey kWorker{Owner::of_user(1000), kHostDevice};
constexpr WorkerKey kOthers{Owner::of_user(1001), kHostDevice};

class LaneStepsTest : public ::testing::Test {
 protected:
  // A session that the user's worker serves.
  std::unique_ptr<WorkersState> add(SessionId id, WorkerKey worker = kWorker) {
    auto session = std::make_unique<Session>();
    session->id = id;
    session->domain = worker.owner;
    session->attached = true;
    session->memory.state = WorkersState::make();
    auto state = std::make_unique<WorkersState>(session->memory.state);
    sessions_.add(std::move(session));
    return state;
  }
  void look_after(uint64_t ns) {
    clock_.now_ns += ns;
    steps_.look();
  }

  ClockByHand clock_;
  SessionTable sessions_;
  LaneSteps steps_{clock_, sessions_};
};

TEST_F(LaneStepsTest, a_step_that_goes_on_is_long_after_a_while_until_it_ends) {
  const auto one = add(kOne);
  look_after(kLongNs);
  EXPECT_FALSE(steps_.is_long(kWorker)) << "it is in none";
  (*one)->begin();
  steps_.look();
  look_after(kLongNs - 1);
  EXPECT_FALSE(steps_.is_long(kWorker));
  clock_.now_ns += 1;
  EXPECT_TRUE(steps_.is_long(kWorker));
  EXPECT_FALSE(steps_.is_long(kOthers));
  (*one)->commit();
  EXPECT_FALSE(steps_.is_long(kWorker)) << "it is known without another look";
}

TEST_F(LaneStepsTest, steps_that_follow_each_other_are_none_that_is_long) {
  const auto one = add(kOne);
  const auto two = add(kTwo);
  for (int turn = 0; turn < 4; ++turn) {
    WorkersState& next = turn % 2 == 0 ? *one : *two;
    next->begin();
    look_after(kLongNs - 1);
    EXPECT_FALSE(steps_.is_long(kWorker));
    next->commit();
  }
  (*one)->begin();
  look_after(1);
  EXPECT_FALSE(steps_.is_long(kWorker)) << "the same session's, and another step";
}

TEST_F(LaneStepsTest, a_dead_workers_step_and_a_gone_sessions_are_nobodys) {
  const auto one = add(kOne);
  const auto two = add(kTwo, kOthers);
  (*one)->begin();
  (*two)->begin();
  steps_.look();
  look_after(kLongNs);
  EXPECT_TRUE(steps_.is_long(kWorker));
  EXPECT_TRUE(steps_.is_long(kOthers));
  sessions_.find(kOne)->attached = false;
  sessions_.erase(kTwo);
  EXPECT_FALSE(steps_.is_long(kWorker));
  EXPECT_FALSE(steps_.is_long(kOthers));
}

}  // namespace
}  // namespace djinn::daemon
