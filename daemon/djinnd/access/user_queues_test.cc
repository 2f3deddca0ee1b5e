// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/user_queues.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "daemon/djinnd/testing/no_threads.h"
#include "daemon/djinnd/testing/run_until.h"

namespace djinn::daemon {
namespace {

constexpr Owner kUser = Owner::of_user(1);
constexpr Owner kNeighbour = Owner::of_user(2);

TEST(UserQueues, one_piece_after_the_other_and_its_result_before_the_next_begins) {
  Loop loop;
  UserQueues queues(loop);
  std::atomic<int> begun = 0;
  std::vector<int> given;
  for (int i = 0; i < 5; ++i) {
    queues.run(
        kUser, [&begun] { return Result<int>(begun++); },
        [&](Result<int> result) {
          EXPECT_EQ(begun, *result + 1) << "no other has begun";
          given.push_back(*result);
        });
  }
  testing::run_until(loop, "all are done", [&] { return given.size() == 5; });
  EXPECT_EQ(given, (std::vector{0, 1, 2, 3, 4}));
}

TEST(UserQueues, work_that_does_not_end_holds_up_its_user_alone) {
  Loop loop;
  auto ends = std::make_shared<std::promise<void>>();
  std::vector<Owner> done;
  UserQueues queues(loop);
  const auto then = [&](Owner user) {
    return [&done, user](const Result<int>&) { done.push_back(user); };
  };
  queues.run(
      kUser,
      [end = ends->get_future().share()] {
        end.wait();
        return Result<int>(0);
      },
      then(kUser));
  queues.run(
      kUser, [] { return Result<int>(0); }, then(kUser));
  queues.run(
      kNeighbour, [] { return Result<int>(0); }, then(kNeighbour));
  testing::run_until(loop, "the neighbour's is done", [&] { return !done.empty(); });
  EXPECT_EQ(done, std::vector{kNeighbour});
  ends->set_value();
  testing::run_until(loop, "all are done", [&] { return done.size() == 3; });
}

TEST(UserQueues, what_nobody_wants_any_more_is_not_begun) {
  Loop loop;
  UserQueues queues(loop);
  bool wanted = true;
  std::vector<int> done;
  for (int i = 0; i < 9; ++i) {
    queues.run(
        kUser, [i] { return Result<int>(i); },
        [&, i](Result<int> result) {
          done.push_back(*result);
          if (i == 1) wanted = false;
        },
        [&wanted, i] { return wanted || i == 8; });
  }
  testing::run_until(loop, "the last is done", [&] { return !done.empty() && done.back() == 8; });
  EXPECT_EQ(done, (std::vector{0, 1, 8}));
}

TEST(UserQueues, who_is_refused_may_ask_for_more_which_is_done_once) {
  Loop loop;
  UserQueues queues(loop);
  std::atomic<int> begun = 0;
  std::vector<int> given;
  const auto ask = [&] {
    queues.run(
        kUser, [&begun] { return Result<int>(++begun); },
        [&](Result<int> result) { given.push_back(*result); });
  };
  auto none = std::make_unique<testing::NoThreads>();
  bool refused = false;
  queues.run(
      kUser, [] { return Result<int>(0); },
      [&](const Result<int>& result) {
        refused = !result.ok();
        none.reset();
        ask();
      });
  EXPECT_TRUE(refused);
  ask();
  testing::run_until(loop, "both are done", [&] { return given.size() >= 2; });
  EXPECT_EQ(given, (std::vector{1, 2}));
  EXPECT_EQ(begun, 2);
}

TEST(UserQueues, nobody_is_called_once_they_are_gone) {
  Loop loop;
  auto ends = std::make_shared<std::promise<void>>();
  const auto ended = std::make_shared<std::promise<void>>();
  {
    UserQueues queues(loop);
    queues.run(
        kUser,
        [end = ends->get_future().share(), ended] {
          end.wait();
          ended->set_value();
          return Result<int>(0);
        },
        [](const Result<int>&) { ADD_FAILURE() << "nobody listens any more"; });
  }
  ends->set_value();
  ended->get_future().wait();
}

}  // namespace
}  // namespace djinn::daemon
