// SPDX-License-Identifier: Apache-2.0

// How long a step goes on before its lane asks again, by a clock that the test moves.
#include "daemon/worker/slices.h"

#include <gtest/gtest.h>

#include <map>

#include "kernel/base/clock_for_tests.h"

namespace djinn::worker {
namespace {

using sched::kUnitNs;

constexpr SessionId kRun{1};
constexpr uint64_t kAfterNs = 1;

class SlicesTest : public testing::Test {
 protected:
  SlicesTest() {
    clock_.now_ns = kNsPerSecond;
    seat_.kind.number = 5;
  }

  // A try of the seat's step inside a pause, by itself on the machine, until it is to be abandoned.
  uint64_t try_inside() {
    const uint64_t begun_ns = clock_.now_ns;
    const Slice aside = slices_.begin(seat_, begun_ns, Slices::Place::kInside);
    while (slices_.goes_on_inside()) clock_.now_ns += kNsPerMs;
    Slices::note_abandoned(seat_, slices_.end(aside, clock_.now_ns));
    return clock_.now_ns - begun_ns;
  }
  // The run of a session has gone on for a slice.
  void begin_run() {
    queue_.add(kRun, ServiceClass::kNormal);
    queue_.enqueue({kRun, sched::Arrival::kWoke, 100 * kUnitNs}, clock_.now_ns);
    ASSERT_EQ(queue_.pick(clock_.now_ns), kRun);
    (void)slices_.begin(seat_, clock_.now_ns, Slices::Place::kOutside);
    clock_.now_ns += kUnitNs;
  }

  ClockByHand clock_;
  sched::Queue queue_{SchedulePolicy::kFair};
  Slices slices_{clock_, queue_};
  Seat seat_;
};

// Of what the lane does for each, Jain's index of fairness: 1 where all get the same.
TEST_F(SlicesTest, who_has_runs_that_take_no_longer_than_their_turns_gets_no_more_of_the_lane) {
  constexpr uint64_t kTurnNs = 2'000, kSpentNs = 2 * kNsPerSecond;
  const std::map<SessionId, uint64_t> steps_ns{{SessionId{1}, kTurnNs},
                                               {SessionId{2}, 15 * kNsPerMs}};
  std::map<SessionId, uint64_t> had_ns;
  for (const auto& [id, step_ns] : steps_ns) {
    queue_.add(id, ServiceClass::kNormal);
    queue_.enqueue({id, sched::Arrival::kWoke, step_ns}, clock_.now_ns);
  }
  for (uint64_t spent_ns = 0; spent_ns < kSpentNs;) {
    const uint64_t turned_ns = clock_.now_ns;
    slices_.begin_turn(turned_ns);
    clock_.now_ns += kTurnNs;
    const SessionId id = *queue_.pick(clock_.now_ns);
    const Slice aside = slices_.begin(seat_, clock_.now_ns, Slices::Place::kOutside);
    clock_.now_ns += steps_ns.at(id);
    const Slice slice = slices_.end(aside, clock_.now_ns);
    queue_.charge(id, clock_.now_ns - slice.since_ns, clock_.now_ns);
    queue_.enqueue({id, sched::Arrival::kNext, steps_ns.at(id)}, clock_.now_ns);
    had_ns[id] += clock_.now_ns - turned_ns;
    spent_ns += clock_.now_ns - turned_ns;
  }
  double sum = 0, squares = 0;
  for (const auto& [id, ns] : had_ns) {
    sum += static_cast<double>(ns);
    squares += static_cast<double>(ns) * static_cast<double>(ns);
  }
  EXPECT_GE(sum * sum / (static_cast<double>(had_ns.size()) * squares), 0.999);
}

TEST_F(SlicesTest, what_a_lane_did_for_nobody_between_two_steps_is_not_the_next_ones) {
  slices_.begin_turn(clock_.now_ns);
  clock_.now_ns += kUnitNs;
  slices_.end_turn();
  slices_.begin_turn(clock_.now_ns);
  clock_.now_ns += kUnitNs;
  slices_.skip(kUnitNs);  // somebody else's turn, or what is charged elsewhere
  const Slice aside = slices_.begin(seat_, clock_.now_ns, Slices::Place::kOutside);
  EXPECT_EQ(slices_.end(aside, clock_.now_ns).since_ns, clock_.now_ns);
}

TEST_F(SlicesTest, a_step_inside_has_twice_as_long_at_each_try_and_is_truly_long_after_the_last) {
  for (const uint64_t units : {2, 4, 8, 16}) {
    EXPECT_EQ(seat_.long_kind, 0u);
    EXPECT_EQ(try_inside(), units * kUnitNs);
    EXPECT_TRUE(Slices::is_long(seat_)) << "it is held";
  }
  EXPECT_EQ(seat_.long_kind, seat_.kind.number);
}

TEST_F(SlicesTest, time_that_others_on_the_machine_had_is_not_counted_against_a_step_inside) {
  const Slice aside = slices_.begin(seat_, clock_.now_ns, Slices::Place::kInside);
  clock_.stand_still(10 * kUnitNs);
  EXPECT_TRUE(slices_.goes_on_inside());
  clock_.stand_still(1000 * kUnitNs);
  EXPECT_TRUE(slices_.goes_on_inside());
  clock_.now_ns += kUnitNs;
  EXPECT_FALSE(slices_.goes_on_inside());
  EXPECT_TRUE(slices_.end(aside, clock_.now_ns).has_run_out);
}

TEST_F(SlicesTest, a_step_that_lacked_memory_has_as_long_at_its_next_try) {
  const Slice aside = slices_.begin(seat_, clock_.now_ns, Slices::Place::kInside);
  Slices::note_abandoned(seat_, slices_.end(aside, clock_.now_ns));
  EXPECT_EQ(seat_.tries_inside, 0u);
  EXPECT_EQ(try_inside(), 2 * kUnitNs);
}

TEST_F(SlicesTest, a_step_that_ends_is_held_no_more_and_long_if_it_took_so_long_of_the_processor) {
  seat_.is_held_back = true;
  seat_.tries_inside = 2;
  for (const bool computes : {false, true}) {
    const Slice aside = slices_.begin(seat_, clock_.now_ns, Slices::Place::kOutside);
    computes ? void(clock_.now_ns += 8 * kUnitNs) : clock_.stand_still(8 * kUnitNs);
    slices_.note_done(seat_, slices_.end(aside, clock_.now_ns));
    EXPECT_EQ(seat_.long_kind, computes ? seat_.kind.number : 0);
    EXPECT_EQ(seat_.tries_inside, 0u);
    EXPECT_FALSE(std::exchange(seat_.is_held_back, true));
  }
}

TEST_F(SlicesTest, what_is_not_the_sessions_time_neither_ends_a_slice_nor_is_charged) {
  begin_run();
  EXPECT_TRUE(slices_.is_over(clock_.now_ns));
  slices_.skip(3 * kUnitNs);
  clock_.now_ns += 3 * kUnitNs - kAfterNs;
  EXPECT_FALSE(slices_.is_over(clock_.now_ns));
  clock_.now_ns += kAfterNs;
  slices_.charge_units(kRun, clock_.now_ns);
  EXPECT_EQ(slices_.charged_ns(), kUnitNs);
  EXPECT_EQ(queue_.slicing(), kRun);
}

TEST_F(SlicesTest, a_step_inside_leaves_the_slice_of_the_run_aside_as_it_was) {
  begin_run();
  slices_.charge(kRun, clock_.now_ns);
  (void)try_inside();
  EXPECT_EQ(slices_.charged_ns(), kUnitNs);
}

}  // namespace
}  // namespace djinn::worker
