// SPDX-License-Identifier: Apache-2.0

// Whom a worker's death accuses: the session whose step it was, and nobody where it was in steps of
// several.
#include "daemon/djinnd/sessions/deaths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "daemon/djinnd/sessions/workers_state_for_tests.h"
#include "daemon/djinnd/testing/no_workers.h"
#include "ipc/limits.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::daemon {
namespace {

// Two sessions of one worker, each with a submission in flight, of which a step is committed.
class DeathsTest : public ::testing::Test {
 protected:
  DeathsTest() {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      auto fresh = std::make_unique<Session>();
      fresh->id = SessionId{i + 1};
      fresh->domain = kWorker.owner;
      fresh->memory.state = WorkersState::make();
      states_[i] = std::make_unique<WorkersState>(fresh->memory.state);
      sessions_[i] = &table_.add(std::move(fresh));
      (*states_[i])->pick_up(0, std::array<std::byte, 64>{}, {});
      step(i);
    }
  }

  void begin(size_t i) { (*states_[i])->begin(); }
  void step(size_t i) {
    begin(i);
    (*states_[i])->commit();
  }
  // As Sessions do it.
  std::array<Deaths::Verdict, 2> worker_dies() {
    const bool shared = deaths_.is_shared(kWorker);
    if (shared) deaths_.note_shared(kWorker);
    return {deaths_.note(*sessions_[0], {}, shared), deaths_.note(*sessions_[1], {}, shared)};
  }
  void expect_accused(size_t i, bool is_accused) {
    SCOPED_TRACE(i);
    const Session& session = *sessions_[i];
    EXPECT_EQ(session.has_killed, is_accused);
    EXPECT_EQ(deaths_.may_have_worker(session), !is_accused);
    EXPECT_EQ(session.refusal.has_value(), is_accused);
  }

  static constexpr WorkerKey kWorker{Owner::of_user(1000), kHostDevice};

  Loop loop_;
  ClockByHand clock_;
  testing::NoWorkers workers_{loop_, clock_};
  SessionTable table_;
  std::array<Session*, 2> sessions_{};
  std::array<std::unique_ptr<WorkersState>, 2> states_;
  Deaths deaths_{clock_, workers_.domains, table_};
};

TEST_F(DeathsTest, workers_that_die_in_a_step_of_two_accuse_neither_however_many) {
  // So many of one session alone would end it.
  for (uint32_t death = 0; death < 2 * limits::kDeathsWithoutProgress; ++death) {
    for (const size_t i : {0, 1}) begin(i);
    for (const Deaths::Verdict& verdict : worker_dies()) {
      EXPECT_TRUE(verdict.progressed) << "the next worker comes at once";
      EXPECT_FALSE(verdict.end);
    }
    for (const size_t i : {0, 1}) {
      expect_accused(i, false);
      const auto progress = sessions_[i]->memory.progress();
      ASSERT_TRUE(progress);
      EXPECT_TRUE(progress->in_flight) << "from which the next worker knows whom to run alone";
      EXPECT_EQ(progress->running_step, 0u);
    }
  }
}

TEST_F(DeathsTest, the_third_worker_that_dies_in_a_step_of_one_alone_accuses_it_and_nobody_else) {
  for (uint32_t death = 1; death <= limits::kDeathsWithoutProgress; ++death) {
    EXPECT_FALSE(sessions_[0]->refusal);
    begin(0);
    EXPECT_TRUE(worker_dies()[0].progressed) << "others need not wait for it";
  }
  expect_accused(0, true);
  EXPECT_EQ(sessions_[0]->refusal->code, ErrorCode::kWorkerLost);
  EXPECT_THAT(sessions_[0]->refusal->message, ::testing::HasSubstr("three times"));
  expect_accused(1, false);
}

// Their steps are computed one by one then, and so the killer is found.
TEST_F(DeathsTest, a_death_in_a_step_of_two_counts_for_none_of_those_that_each_has_alone) {
  for (const size_t i : {0, 1}) begin(i);
  worker_dies();
  for (uint32_t death = 1; death <= limits::kDeathsWithoutProgress; ++death) {
    expect_accused(1, false);
    EXPECT_FALSE(sessions_[0]->refusal) << "after " << death << " deaths";
    step(1);
    begin(0);
    worker_dies();
  }
  expect_accused(0, true);
  expect_accused(1, false);
}

}  // namespace
}  // namespace djinn::daemon
