// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/worker_supervisor.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>

#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

TEST(WorkerPhase, a_worker_that_died_is_waited_for_before_the_next_is_ready) {
  using enum WorkerPhase;
  constexpr std::array kStates{kAbsent, kWaiting, kReady, kBackingOff};
  constexpr auto kLegal = std::to_array<Transition<WorkerPhase>>({
      {kAbsent, kAbsent},
      {kAbsent, kWaiting},
      {kWaiting, kAbsent},
      {kWaiting, kReady},
      {kReady, kAbsent},
      {kReady, kBackingOff},
      {kBackingOff, kAbsent},
      {kBackingOff, kWaiting},
  });
  StateForTests::expect_legal<WorkerPhase>(kStates, kLegal);
}

TEST(Suspect, is_the_oldest_command_that_is_more_than_a_question) {
  const OwedAnswer wake = *owed_for({ipc::WakeLane{}}),
                   schedule = *owed_for({ipc::GetLaneSchedule{}});
  const OwedAnswer first = *owed_for({ipc::DetachSession{SessionId{7}}});
  const OwedAnswer second = *owed_for({ipc::DetachSession{SessionId{8}}});
  EXPECT_EQ(suspect_of({}), std::nullopt);
  EXPECT_EQ(suspect_of(std::deque{wake, schedule}), std::nullopt);
  EXPECT_EQ(suspect_of(std::deque{schedule, wake, first, second}), first);
  EXPECT_EQ(suspect_of(std::deque{second, schedule, first}), second);
}

}  // namespace
}  // namespace djinn::daemon
