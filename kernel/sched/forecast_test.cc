// SPDX-License-Identifier: Apache-2.0

// What is foreseen of a queue is what becomes of it, where steps take as long as predicted.
#include "kernel/sched/forecast.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace djinn::sched {
namespace {

constexpr uint64_t kNow = 5 * kNsPerSecond;

// Sessions with work of known length, and a queue that has them.
class KnownWork {
 public:
  explicit KnownWork(SchedulePolicy policy = SchedulePolicy::kFair) : queue(policy) {}

  void add(uint64_t id, const Backlog& work, ServiceClass service = ServiceClass::kNormal) {
    queue.add(SessionId{id}, service);
    backlogs[id] = work;
  }
  void enqueue(uint64_t id, Arrival arrival = Arrival::kWoke) {
    const Backlog& work = backlogs.at(id);
    queue.enqueue({SessionId{id}, arrival, work.step_ns, 0, work.is_long, work.is_sure}, now_ns);
  }
  // Of one that is ready.
  [[nodiscard]] Forecast of(uint64_t id) const {
    return forecast(queue, SessionId{id}, now_ns,
                    [this](SessionId session) { return backlogs.at(session.value); });
  }

  Queue queue;
  std::map<uint64_t, Backlog> backlogs;
  uint64_t now_ns = kNow;
};

Backlog single(uint64_t ns) {
  return {.step_ns = ns, .has_slices = true, .is_long = ns > 8 * kUnitNs};
}

Backlog series_of(uint64_t count, uint64_t each_ns) {
  return {.step_ns = each_ns, .steps = count - 1, .each_ns = each_ns};
}

TEST(Forecast, who_is_alone_waits_for_nobody) {
  for (const auto policy : {SchedulePolicy::kFair, SchedulePolicy::kFifo}) {
    KnownWork lane(policy);
    lane.add(1, single(kNsPerSecond));
    lane.enqueue(1);
    EXPECT_EQ(lane.of(1).wait_ns, 0u);
    EXPECT_FALSE(lane.of(1).is_least);
  }
}

TEST(Forecast, of_fifo_who_came_before_is_done_to_its_end_and_who_came_after_is_not) {
  KnownWork lane(SchedulePolicy::kFifo);
  lane.add(1, series_of(100, 10 * kNsPerMs));
  lane.add(2, single(300 * kNsPerMs));
  lane.backlogs[2].behind = 5;
  lane.backlogs[2].behind_ns = kNsPerSecond;
  lane.add(3, single(1 * kNsPerMs));
  lane.add(4, single(kNsPerSecond));
  for (const uint64_t id : {1, 2, 3, 4}) lane.enqueue(id);
  EXPECT_EQ(lane.of(3).wait_ns, 1300 * kNsPerMs);
  EXPECT_EQ(lane.of(2).wait_ns, 1000 * kNsPerMs);
}

TEST(Forecast, it_does_not_matter_for_how_long_the_machine_is_up) {
  constexpr uint64_t kYear = uint64_t{365} * 24 * 3600 * kNsPerSecond;
  for (const auto policy : {SchedulePolicy::kFair, SchedulePolicy::kFifo}) {
    KnownWork lane(policy);
    lane.add(1, {.step_ns = 60 * kNsPerMs});
    lane.add(2, single(1 * kNsPerMs));
    lane.now_ns = kYear;
    lane.enqueue(1);
    ASSERT_EQ(lane.queue.pick(kYear), SessionId{1});
    lane.enqueue(2);
    EXPECT_EQ(lane.of(2).wait_ns, 60 * kNsPerMs);
  }
}

// A graph that says of itself that it takes for ever, in a class that is charged four times its
// time.
TEST(Forecast, steps_that_take_for_ever_are_a_month) {
  KnownWork lane;
  lane.add(1, series_of(5000, UINT64_MAX), ServiceClass::kBatch);
  lane.add(2, single(1 * kNsPerMs), ServiceClass::kIdle);
  for (const uint64_t id : {1, 2}) lane.enqueue(id);
  EXPECT_EQ(lane.of(2).wait_ns, 31 * 24 * 3600 * kNsPerSecond);
  EXPECT_TRUE(lane.of(2).is_least);
}

TEST(Forecast, what_is_being_computed_goes_before) {
  for (const auto policy : {SchedulePolicy::kFair, SchedulePolicy::kFifo}) {
    KnownWork lane(policy);
    lane.add(1, {.step_ns = 60 * kNsPerMs});
    lane.add(2, single(1 * kNsPerMs));
    lane.enqueue(1);
    ASSERT_EQ(lane.queue.pick(kNow), SessionId{1});
    lane.enqueue(2);
    EXPECT_EQ(lane.of(2).wait_ns, 60 * kNsPerMs);
  }
}

TEST(Forecast, a_long_run_is_paused_for_a_short_one_and_ends_before_another_long_one) {
  KnownWork lane;
  lane.add(1, single(2 * kNsPerSecond));
  lane.add(2, single(1 * kNsPerMs));
  lane.add(3, single(kNsPerSecond));
  lane.enqueue(1);
  ASSERT_EQ(lane.queue.pick(kNow), SessionId{1});
  lane.enqueue(2);
  lane.enqueue(3);
  EXPECT_LE(lane.of(2).wait_ns, 2 * kUnitNs);
  EXPECT_GE(lane.of(3).wait_ns, 2 * kNsPerSecond);
  EXPECT_LE(lane.of(3).wait_ns, 2 * kNsPerSecond + kUnitNs);
}

TEST(Forecast, a_long_run_of_the_class_idle_is_in_nobodys_way) {
  KnownWork lane;
  lane.add(1, single(100 * kNsPerSecond), ServiceClass::kIdle);
  lane.add(2, single(kNsPerSecond));
  lane.enqueue(1);
  ASSERT_EQ(lane.queue.pick(kNow), SessionId{1});
  lane.enqueue(2);
  EXPECT_LE(lane.of(2).wait_ns, kUnitNs);
}

TEST(Forecast, no_more_is_looked_at_than_a_limit_and_what_it_gives_says_so) {
  KnownWork lane;
  lane.add(1, {.behind = UINT64_MAX}, ServiceClass::kNormal);
  lane.add(2, single(1 * kNsPerMs), ServiceClass::kIdle);
  lane.enqueue(1);
  lane.enqueue(2);
  EXPECT_TRUE(lane.of(2).is_least);
  lane.backlogs[1] = series_of(UINT64_MAX, UINT64_MAX);
  EXPECT_TRUE(lane.of(2).is_least);
}

TEST(Forecast, submissions_behind_a_long_one_are_long_too) {
  KnownWork lane;
  lane.add(1, single(kNsPerSecond));
  lane.backlogs[1].behind = 1;
  lane.backlogs[1].behind_ns = kNsPerSecond;
  lane.add(2, single(kNsPerSecond));
  lane.add(3, single(kNsPerSecond));
  for (const uint64_t id : {1, 2, 3}) lane.enqueue(id);
  ASSERT_EQ(lane.queue.pick(kNow), SessionId{1});
  EXPECT_EQ(lane.of(3).wait_ns, 2 * kNsPerSecond);  // the second of the first is held then
}

// Steps that come one after the other beside a run with slices, which had more than its share: it
// has the least slices, and does not compute for a unit before each of them.
TEST(Forecast, a_run_that_is_owed_nothing_has_short_slices) {
  KnownWork lane;
  lane.add(1, single(kNsPerSecond));
  lane.add(2, series_of(100, kNsPerMs));
  lane.add(3, single(kNsPerMs));
  lane.enqueue(1);
  ASSERT_EQ(lane.queue.pick(kNow), SessionId{1});
  lane.queue.begin_slices(SessionId{1});
  lane.queue.charge_running(SessionId{1}, 10 * kUnitNs);
  lane.enqueue(2);
  lane.enqueue(3, Arrival::kNext);
  lane.queue.end_slice(SessionId{1});
  lane.queue.resume(SessionId{1}, kNow);
  EXPECT_LT(lane.of(3).wait_ns, kUnitNs / 2);
}

// The queue itself, driven step by step by the same times, picks the session at that very moment.
TEST(Forecast, of_any_mix_of_sessions_is_when_the_queue_picks_it) {
  std::mt19937 random(7);
  const auto below = [&](uint64_t n) {
    return std::uniform_int_distribution<uint64_t>(0, n - 1)(random);
  };
  for (int round = 0; round < 200; ++round) {
    KnownWork lane(below(4) == 0 ? SchedulePolicy::kFifo : SchedulePolicy::kFair);
    const uint64_t sessions = 2 + below(12);
    for (uint64_t id = 1; id <= sessions; ++id) {
      const Backlog work = below(2) == 0 ? series_of(1 + below(40), (1 + below(60)) * kNsPerMs)
                                         : Backlog{.step_ns = (1 + below(60)) * kNsPerMs};
      lane.add(id, work, static_cast<ServiceClass>(below(3)));
      lane.enqueue(id);
      if (below(3) != 0) continue;
      lane.queue.charge(*lane.queue.pick(kNow), below(50) * kNsPerMs);  // one of them had its step
    }
    const uint64_t asks = sessions + 1;
    lane.add(asks, {.step_ns = (1 + below(30)) * kNsPerMs}, static_cast<ServiceClass>(below(3)));
    lane.enqueue(asks);
    const Forecast foreseen = lane.of(asks);
    uint64_t now_ns = kNow;
    auto left = lane.backlogs;
    for (;;) {
      const SessionId id = *lane.queue.pick(now_ns);
      if (id == SessionId{asks}) break;
      Backlog& work = left.at(id.value);
      now_ns += work.step_ns;
      lane.queue.charge(id, work.step_ns);
      if (work.steps == 0) continue;
      --work.steps;
      work.step_ns = work.each_ns;
      lane.queue.enqueue({id, Arrival::kGoesOn, work.step_ns}, now_ns);
    }
    EXPECT_EQ(foreseen.wait_ns, now_ns - kNow);
    EXPECT_FALSE(foreseen.is_least);
  }
}

}  // namespace
}  // namespace djinn::sched
