// SPDX-License-Identifier: Apache-2.0

// What a queue promises, over a simulated lane: each step takes the time that the test says.
#include "kernel/sched/queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "kernel/base/clock_for_tests.h"
#include "kernel/sched/queue_for_tests.h"
#include "kernel/sched/step_times.h"

namespace djinn::sched {
namespace {

constexpr uint64_t kMs = kNsPerMs;
constexpr uint64_t kTurnNs = 10'000;  // of a lane that waits

// A client that has a next step as soon as one is over, or sleeps between two.
struct Worker {
  std::function<uint64_t()> step_ns;
  ServiceClass service = ServiceClass::kNormal;
  uint64_t sleep_ns = 0;  // after each step
  // Of a submission of many steps; 1: each is its own.
  uint64_t steps = 1;

  uint64_t given_ns = 0;
  uint64_t steps_done = 0;
  uint64_t wakes_ns = 0;  // when it is asleep
  bool is_ready = false;
  std::vector<uint64_t> given_at_ns{};  // when its steps were over
};

class Lane {
 public:
  explicit Lane(SchedulePolicy policy = SchedulePolicy::kFair) : queue(policy) {}

  // Takes part from the clock's now on.
  uint64_t add(Worker worker) {
    workers.push_back(std::move(worker));
    const uint64_t id = workers.size();
    queue.add(SessionId{id}, workers.back().service);
    wake(id);
    return id;
  }
  Worker& of(uint64_t id) { return workers[id - 1]; }

  // Until the clock says so. Each turn: observe() sees all who have been given something.
  void run_until(uint64_t end_ns, const std::function<void()>& observe = {}) {
    while (clock.now_ns < end_ns) {
      for (uint64_t id = 1; id <= workers.size(); ++id) {
        if (!of(id).is_ready && of(id).wakes_ns <= clock.now_ns) wake(id);
      }
      if (queue.is_worth_waiting(clock.now_ns)) {
        clock.now_ns += kTurnNs;
        waited_ns += kTurnNs;
      } else if (!step()) {
        sleep_until_somebody_wakes(end_ns);
      }
      if (observe) observe();
    }
  }

  ClockByHand clock;
  Queue queue;
  std::deque<Worker> workers;
  uint64_t waited_ns = 0;       // for clients
  std::vector<uint64_t> order;  // of sessions, as they were picked

 private:
  void enqueue(uint64_t id, Arrival arrival) {
    of(id).is_ready = true;
    queue.enqueue({SessionId{id}, arrival, times.predict_ns(id), 0}, clock.now_ns);
  }
  void wake(uint64_t id) {
    enqueue(id, of(id).sleep_ns > kLingerNs || of(id).steps_done == 0 ? Arrival::kWoke
                                                                      : Arrival::kNext);
  }

  bool step() {
    const auto picked = queue.pick(clock.now_ns);
    if (!picked) return false;
    Worker& worker = of(picked->value);
    const uint64_t ns = worker.step_ns();
    clock.now_ns += ns;
    queue.charge(*picked, ns);
    times.note(picked->value, ns);
    order.push_back(picked->value);
    worker.given_ns += ns;
    worker.given_at_ns.push_back(clock.now_ns);
    worker.is_ready = false;
    const bool ends = ++worker.steps_done % worker.steps == 0;
    if (worker.sleep_ns > 0 && ends) {
      worker.wakes_ns = clock.now_ns + worker.sleep_ns;
    } else {
      enqueue(picked->value, ends ? Arrival::kNext : Arrival::kGoesOn);
    }
    return true;
  }

  void sleep_until_somebody_wakes(uint64_t end_ns) {
    uint64_t wakes_ns = end_ns;
    for (const Worker& worker : workers) wakes_ns = std::min(wakes_ns, worker.wakes_ns);
    clock.now_ns = std::max(clock.now_ns + 1, wakes_ns);
  }

  StepTimes times;
};

std::function<uint64_t()> always(uint64_t ns) {
  return [ns] { return ns; };
}

std::function<uint64_t()> between(uint64_t low_ns, uint64_t high_ns, uint32_t seed) {
  return [low_ns, high_ns, random = std::mt19937(seed)]() mutable {
    return std::uniform_int_distribution<uint64_t>(low_ns, high_ns)(random);
  };
}

// Jain, Chiu, Hawe, "A Quantitative Measure of Fairness", DEC-TR-301, 1984.
double jain(const std::deque<Worker>& workers) {
  double sum = 0;
  double squares = 0;
  for (const Worker& worker : workers) {
    const auto given = static_cast<double>(worker.given_ns);
    sum += given;
    squares += given * given;
  }
  return sum * sum / (static_cast<double>(workers.size()) * squares);
}

// Token loops, prompts and one whose steps are a second, all at once.
void add_mixed_work(Lane& lane) {
  lane.add({always(1 * kMs)});
  lane.add({always(34 * kMs), ServiceClass::kNormal, 0, 100});
  lane.add({between(5 * kMs, 60 * kMs, 1)});
  lane.add({always(kNsPerSecond)});
  lane.add({between(10'000, 300'000, 2)});
  lane.add({always(64 * kMs), ServiceClass::kNormal, 0, 50});
  lane.add({always(250 * kMs)});
  // A prompt, then tokens.
  lane.add({[n = 0]() mutable { return (n++ % 100 == 0 ? 500 : 20) * kMs; }, ServiceClass::kNormal,
            0, 100});
}

// --- fair

TEST(FairQueue, eight_sessions_of_mixed_steps_get_the_same_time) {
  Lane lane;
  add_mixed_work(lane);
  lane.run_until(60 * kNsPerSecond);
  EXPECT_GE(jain(lane.workers), 0.95);
}

TEST(FairQueue, no_session_is_ever_two_units_from_its_share) {
  Lane lane;
  add_mixed_work(lane);
  const uint64_t unit_ns = kNsPerSecond;  // the longest step
  uint64_t worst_ns = 0;
  lane.run_until(60 * kNsPerSecond, [&] {
    const uint64_t share_ns = lane.clock.now_ns / lane.workers.size();
    for (const Worker& worker : lane.workers) {
      const uint64_t gap =
          std::max(share_ns, worker.given_ns) - std::min(share_ns, worker.given_ns);
      worst_ns = std::max(worst_ns, gap);
    }
  });
  EXPECT_LE(worst_ns, 2 * unit_ns);
}

TEST(FairQueue, a_session_of_short_steps_waits_for_one_long_step_at_most_once_it_has_its_share) {
  Lane lane;
  const uint64_t tokens = lane.add({always(10 * kMs)});
  lane.add({always(50 * kMs)});
  lane.run_until(10 * kNsPerSecond);
  const auto& at = lane.of(tokens).given_at_ns;
  for (size_t i = 1; i < at.size(); ++i) EXPECT_LE(at[i] - at[i - 1], 60 * kMs);
}

TEST(FairQueue, classes_get_time_by_their_weights) {
  Lane lane;
  const uint64_t interactive = lane.add({between(kMs, 30 * kMs, 1), ServiceClass::kInteractive});
  const uint64_t normal = lane.add({between(kMs, 60 * kMs, 2), ServiceClass::kNormal});
  const uint64_t batch = lane.add({always(40 * kMs), ServiceClass::kBatch});
  lane.run_until(70 * kNsPerSecond);
  const auto seconds = [&](uint64_t id) { return static_cast<double>(lane.of(id).given_ns) / 1e9; };
  EXPECT_NEAR(seconds(interactive), 40, 0.5);
  EXPECT_NEAR(seconds(normal), 20, 0.5);
  EXPECT_NEAR(seconds(batch), 10, 0.5);
}

TEST(FairQueue, idle_gets_nothing_while_another_is_ready_and_all_the_rest) {
  Lane lane;
  const uint64_t idle = lane.add({always(3 * kMs), ServiceClass::kIdle});
  const uint64_t also_idle = lane.add({always(6 * kMs), ServiceClass::kIdle});
  const uint64_t batch = lane.add({always(30 * kMs), ServiceClass::kBatch});
  lane.run_until(10 * kNsPerSecond);
  EXPECT_EQ(lane.of(idle).given_ns + lane.of(also_idle).given_ns, 0u);
  lane.of(batch).sleep_ns = 100 * kNsPerSecond;
  const uint64_t before_ns = lane.of(batch).given_ns;
  lane.run_until(20 * kNsPerSecond);
  EXPECT_EQ(lane.of(batch).given_ns - before_ns, 30 * kMs);  // the step that it had begun
  EXPECT_NEAR(static_cast<double>(lane.of(idle).given_ns), 4.985e9, 2e7);
  EXPECT_NEAR(static_cast<double>(lane.of(also_idle).given_ns), 4.985e9, 2e7);
}

TEST(FairQueue, who_slept_gets_no_credit_for_it) {
  Lane lane;
  const uint64_t busy = lane.add({always(5 * kMs)});
  const uint64_t sleeper = lane.add({always(5 * kMs)});
  lane.of(sleeper).sleep_ns = 60 * kNsPerSecond;
  lane.run_until(50 * kNsPerSecond);
  ASSERT_EQ(lane.of(sleeper).given_ns, 5 * kMs);
  lane.of(sleeper).sleep_ns = 0;
  lane.run_until(61 * kNsPerSecond);
  const uint64_t before = lane.of(busy).given_ns;
  const uint64_t slept = lane.of(sleeper).given_ns;
  lane.run_until(62 * kNsPerSecond);
  const uint64_t busy_ns = lane.of(busy).given_ns - before;
  const uint64_t sleeper_ns = lane.of(sleeper).given_ns - slept;
  EXPECT_NEAR(static_cast<double>(busy_ns), static_cast<double>(sleeper_ns), 10.0 * kMs);
  // When it woke it was owed a unit: half of the second since, and that.
  EXPECT_LE(slept - 5 * kMs, kNsPerSecond / 2 + kUnitNs);
  const auto& at = lane.of(busy).given_at_ns;
  for (size_t i = 1; i < at.size(); ++i) EXPECT_LE(at[i] - at[i - 1], 2 * kUnitNs + 10 * kMs);
}

TEST(FairQueue, who_slept_is_not_kept_waiting_for_it) {
  Lane lane;
  for (int i = 0; i < 8; ++i) lane.add({always(10 * kMs)});
  const uint64_t sleeper = lane.add({always(kMs)});
  lane.of(sleeper).sleep_ns = 300 * kMs;
  lane.run_until(20 * kNsPerSecond);
  const auto& at = lane.of(sleeper).given_at_ns;
  ASSERT_GT(at.size(), 50u);
  // It woke in another's step, and was next.
  for (size_t i = 1; i < at.size(); ++i) EXPECT_LE(at[i] - at[i - 1], (300 + 10 + 1) * kMs);
}

// They submit a run when they have read the result of the one before: between two they have
// nothing.
TEST(FairQueue, clients_of_one_run_at_a_time_get_the_same_time_as_those_that_always_have_one) {
  Lane lane;
  add_mixed_work(lane);
  for (Worker& worker : lane.workers) {
    if (worker.steps == 1) worker.sleep_ns = 100'000;
  }
  lane.run_until(40 * kNsPerSecond);
  EXPECT_GE(jain(lane.workers), 0.95);
  EXPECT_LE(lane.waited_ns, 4 * kNsPerSecond);
}

TEST(FairQueue, a_long_step_waits_for_a_client_a_twentieth_of_its_time_and_does_not_pay_for_it) {
  Lane lane;
  const uint64_t loop = lane.add({always(100'000), ServiceClass::kNormal, 450'000});
  const uint64_t busy = lane.add({always(10 * kMs)});
  lane.run_until(10 * kNsPerSecond);
  // Of its half the loop's client spends nine parts in ten on itself.
  EXPECT_NEAR(static_cast<double>(lane.of(busy).given_ns), 5e9, 2e8);
  EXPECT_GT(lane.of(loop).given_ns, kNsPerSecond * 2 / 3);
  // One that never answers in time is not waited for beyond that.
  lane.of(loop).sleep_ns = 3 * kMs;
  lane.waited_ns = 0;
  const uint64_t before_ns = lane.of(busy).given_ns;
  lane.run_until(20 * kNsPerSecond);
  EXPECT_GE(lane.of(busy).given_ns - before_ns, 9 * kNsPerSecond);
  EXPECT_LE(lane.waited_ns, kNsPerSecond / 2);
}

TEST(FairQueue, a_short_step_waits_for_nobody) {
  Lane lane;
  lane.add({always(50'000), ServiceClass::kInteractive, 100'000});
  lane.add({always(500'000)});
  lane.run_until(kNsPerSecond);
  EXPECT_EQ(lane.waited_ns, 0u);
}

TEST(FairQueue, a_step_that_took_longer_than_predicted_is_paid_for) {
  Lane lane;
  // Nobody can tell its lengths from the ones before.
  const uint64_t liar = lane.add({[n = 0]() mutable { return (n++ % 10 == 0 ? 400 : 1) * kMs; }});
  const uint64_t honest = lane.add({always(20 * kMs)});
  lane.run_until(60 * kNsPerSecond);
  EXPECT_NEAR(static_cast<double>(lane.of(liar).given_ns),
              static_cast<double>(lane.of(honest).given_ns), 4e8);
}

// Of each of two sessions a step is picked: how much less the one is owed. Of a copy.
int64_t behind_ns(Queue queue, SessionId one, SessionId other) {
  for (const SessionId id : {one, other}) queue.enqueue({id, Arrival::kGoesOn, kMs}, 0);
  while (queue.pick(0)) {
  }
  const auto decisions = queue.decisions();
  const auto lag_of = [&](SessionId id) {
    return std::ranges::find(decisions.rbegin(), decisions.rend(), id, &Decision::session)->lag_ns;
  };
  return lag_of(other) - lag_of(one);
}

// A normal session's nanosecond is two virtual ones.
TEST(FairQueue, a_session_is_behind_by_what_its_judged_submissions_cost_whether_refused_or_not) {
  for (const ServiceClass service : {ServiceClass::kInteractive, ServiceClass::kNormal}) {
    for (const bool has_others : {false, true}) {
      Queue queue(SchedulePolicy::kFair);
      for (const uint64_t id : {1, 2, 3}) queue.add(SessionId{id}, service);
      if (has_others) queue.enqueue({SessionId{3}, Arrival::kWoke, kMs}, 0);
      for (uint64_t i = 0; i < 50; ++i) {
        queue.charge_judging(SessionId{1}, i % 2 == 0 ? Arrival::kWoke : Arrival::kNext, 0, kMs);
      }
      const int64_t weighted = service == ServiceClass::kNormal ? 2 : 1;
      EXPECT_EQ(behind_ns(queue, SessionId{1}, SessionId{2}), int64_t{50 * kMs} * weighted);
      if (!has_others) continue;
      ASSERT_EQ(queue.pick(0), SessionId{3});
      EXPECT_EQ(queue.decisions().back().lag_ns, 0);  // others' judgements change nothing for it
    }
  }
}

TEST(FairQueue, no_judgement_is_paid_for_with_what_was_owed_to_who_slept) {
  Queue queue(SchedulePolicy::kFair);
  for (const uint64_t id : {1, 2, 3}) queue.add(SessionId{id}, ServiceClass::kInteractive);
  for (uint64_t i = 0; i < 100; ++i) {
    queue.enqueue({SessionId{3}, Arrival::kNext, 10 * kMs}, i * 10 * kMs);
    ASSERT_EQ(queue.pick(i * 10 * kMs), SessionId{3});
    queue.charge(SessionId{3}, 10 * kMs);
  }
  queue.charge_judging(SessionId{1}, Arrival::kWoke, 1000 * kMs, 7 * kMs);
  for (const uint64_t id : {2, 1}) {
    queue.enqueue({SessionId{id}, Arrival::kWoke, kMs}, 1007 * kMs);
  }
  ASSERT_EQ(queue.pick(1007 * kMs), SessionId{2});
  ASSERT_EQ(queue.pick(1007 * kMs), SessionId{1});
  const auto decisions = queue.decisions();
  EXPECT_EQ(decisions[100].lag_ns - decisions[101].lag_ns, int64_t{7 * kMs});
}

TEST(FairQueue, a_session_that_leaves_and_one_that_comes_change_nothing_between_the_others) {
  Lane lane;
  const uint64_t a = lane.add({always(7 * kMs)});
  const uint64_t b = lane.add({always(31 * kMs)});
  for (uint64_t round = 1; round <= 100; ++round) {
    const uint64_t guest = lane.add({always(50 * kMs)});
    lane.run_until(round * 300 * kMs);
    lane.queue.remove(SessionId{guest});
    lane.of(guest).is_ready = true;  // gone: it never wakes
  }
  EXPECT_NEAR(static_cast<double>(lane.of(a).given_ns), static_cast<double>(lane.of(b).given_ns),
              62.0 * kMs);
}

TEST(FairQueue, a_thousand_sessions_get_the_same_time) {
  Lane lane;
  for (uint32_t i = 0; i < 1000; ++i) lane.add({between(100'000, 5 * kMs, i)});
  lane.run_until(60 * kNsPerSecond);
  EXPECT_GE(jain(lane.workers), 0.95);
}

// Sessions of all kinds come, sleep, wake, go on and leave; its own assertions watch over it.
TEST(FairQueue, whatever_sessions_do_each_pick_is_ready_and_none_is_forgotten) {
  for (const SchedulePolicy policy : {SchedulePolicy::kFair, SchedulePolicy::kFifo}) {
    Queue queue(policy);
    std::mt19937 random(5);
    const auto below = [&](uint64_t n) { return random() % n; };
    enum State { kGone, kAsleep, kReady };
    std::vector<State> states(60, kGone);
    uint64_t now_ns = 0;
    for (int i = 0; i < 200'000; ++i) {
      const uint64_t at = below(states.size());
      const SessionId id{at + 1};
      if (states[at] == kGone) {
        queue.add(id, static_cast<ServiceClass>(below(kServiceClasses)));
        states[at] = kAsleep;
      } else if (below(50) == 0) {
        queue.remove(id);
        states[at] = kGone;
      } else if (states[at] == kAsleep) {
        queue.enqueue({id, static_cast<Arrival>(below(4)), below(100 * kMs), below(4)}, now_ns);
        states[at] = kReady;
      }
      const auto is_ready = [&] { return std::ranges::find(states, kReady) != states.end(); };
      ASSERT_EQ(queue.has_ready(), is_ready());
      now_ns += below(kLingerNs);
      if (below(2) == 0 || queue.is_worth_waiting(now_ns)) continue;
      const auto picked = queue.pick(now_ns);
      ASSERT_EQ(picked.has_value(), is_ready());
      if (!picked) continue;
      ASSERT_EQ(states[picked->value - 1], kReady);
      states[picked->value - 1] = kAsleep;
      const uint64_t ns = below(200 * kMs);
      now_ns += ns;
      queue.charge(*picked, ns);
    }
    while (const auto picked = queue.pick(now_ns)) {
      states[picked->value - 1] = kAsleep;
      queue.charge(*picked, 1);
    }
    EXPECT_EQ(std::ranges::count(states, kReady), 0);
  }
}

// --- fifo

TEST(FifoQueue, submissions_go_in_the_order_in_which_they_came_and_to_their_end) {
  Lane lane(SchedulePolicy::kFifo);
  lane.add({always(kMs), ServiceClass::kBatch, 0, 3});
  lane.add({always(kMs), ServiceClass::kInteractive, 0, 2});
  lane.add({always(kMs), ServiceClass::kNormal, 0, 1});
  lane.run_until(12 * kMs);
  EXPECT_EQ(lane.order, (std::vector<uint64_t>{1, 1, 1, 2, 2, 3, 1, 1, 1, 2, 2, 3}));
}

TEST(FifoQueue, idle_waits_for_all_others) {
  Lane lane(SchedulePolicy::kFifo);
  const uint64_t idle = lane.add({always(kMs), ServiceClass::kIdle});
  const uint64_t batch = lane.add({always(kMs), ServiceClass::kBatch});
  lane.of(batch).sleep_ns = 10 * kMs;
  lane.run_until(3 * kMs);
  EXPECT_EQ(lane.order, (std::vector<uint64_t>{batch, idle, idle}));
}

TEST(FifoQueue, a_submission_that_could_not_go_on_keeps_its_place) {
  Queue queue(SchedulePolicy::kFifo);
  for (uint64_t id = 1; id <= 2; ++id) {
    queue.add(SessionId{id}, ServiceClass::kNormal);
    queue.enqueue({SessionId{id}, Arrival::kWoke, kMs, 0}, 0);
  }
  ASSERT_EQ(queue.pick(0), SessionId{1});
  queue.charge(SessionId{1}, kMs);  // it waits for memory
  queue.enqueue({SessionId{1}, Arrival::kResumes, kMs, 0}, 0);
  EXPECT_EQ(queue.pick(0), SessionId{1});
}

// --- batches

TEST(Queue, the_other_ready_steps_of_a_key_can_join_the_picked_one) {
  Queue queue(SchedulePolicy::kFair);
  for (uint64_t id = 1; id <= 4; ++id) queue.add(SessionId{id}, ServiceClass::kNormal);
  for (uint64_t id = 1; id <= 3; ++id) {
    queue.enqueue({SessionId{id}, Arrival::kWoke, kMs, id == 2 ? 8u : 9u}, 0);
  }
  queue.enqueue({SessionId{4}, Arrival::kWoke, kMs, 0}, 0);
  ASSERT_EQ(queue.pick(0), SessionId{1});
  EXPECT_EQ(queue.ready_with(9), std::vector<SessionId>{SessionId{3}});
  EXPECT_EQ(queue.ready_with(7), std::vector<SessionId>{});
  queue.join(SessionId{3}, 0);
  EXPECT_EQ(queue.ready_with(9), std::vector<SessionId>{});
  for (const uint64_t id : {1, 3}) queue.charge(SessionId{id}, kMs / 2);
  const auto decisions = queue.decisions();
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(decisions[0].reason, PickReason::kDeadline);
  EXPECT_EQ(decisions[1].reason, PickReason::kBatch);
  EXPECT_EQ(decisions[1].measured_ns, kMs / 2);
  EXPECT_TRUE(queue.has_ready());
}

TEST(Queue, who_may_join_and_is_owed_most_comes_first) {
  for (const SchedulePolicy policy : {SchedulePolicy::kFair, SchedulePolicy::kFifo}) {
    Queue queue(policy);
    for (uint64_t id = 1; id <= 3; ++id) queue.add(SessionId{id}, ServiceClass::kNormal);
    queue.enqueue({SessionId{1}, Arrival::kNext, kMs, 9}, 0);
    ASSERT_EQ(queue.pick(0), SessionId{1});
    queue.charge(SessionId{1}, 5 * kMs);
    queue.enqueue({SessionId{3}, Arrival::kNext, kMs, 9}, 0);
    queue.enqueue({SessionId{1}, Arrival::kGoesOn, kMs, 9}, 0);
    queue.enqueue({SessionId{2}, Arrival::kNext, kMs, 9}, 0);
    const std::vector<SessionId> ready = queue.ready_with(9);
    ASSERT_EQ(ready.size(), 3u);
    const bool is_fair = policy == SchedulePolicy::kFair;
    EXPECT_EQ(ready.front(), is_fair ? SessionId{2} : SessionId{1});
    EXPECT_EQ(ready.back(), is_fair ? SessionId{1} : SessionId{2});
  }
}

// Two clients that have the loop: each submits a step when it has read the last one's result. They
// are by turns, and now it is that of 1.
struct TwoLoops {
  TwoLoops(uint64_t step, uint64_t gap, uint64_t key) : step_ns(step), gap_ns(gap), batch_key(key) {
    for (const uint64_t id : {1, 2}) queue.add(SessionId{id}, ServiceClass::kNormal);
    come(1);
    for (int turn = 0; turn < 4; ++turn) {
      compute(1, 2);
      compute(2, 1);
    }
  }
  void come(uint64_t id) {
    queue.enqueue({SessionId{id}, Arrival::kNext, step_ns, batch_key}, now_ns);
  }
  // The next step is of that one, and meanwhile the other one comes.
  void compute(uint64_t id, uint64_t other) {
    EXPECT_EQ(queue.pick(now_ns), SessionId{id});
    now_ns += gap_ns;
    come(other);
    now_ns += step_ns - gap_ns;
    queue.charge(SessionId{id}, step_ns);
  }

  Queue queue{SchedulePolicy::kFair};
  uint64_t step_ns;
  uint64_t gap_ns;
  uint64_t batch_key;
  uint64_t now_ns = kMs;
};

TEST(Queue, a_step_waits_for_company_that_is_usually_there_in_a_moment) {
  TwoLoops loops(20 * kMs, kMs, 9);
  const uint64_t ended_ns = loops.now_ns;
  EXPECT_TRUE(loops.queue.is_worth_waiting(ended_ns + kMs - 1));
  loops.now_ns += kMs;
  loops.come(2);
  EXPECT_FALSE(loops.queue.is_worth_waiting(loops.now_ns)) << "both are there";
  const auto picked = loops.queue.pick(loops.now_ns);
  ASSERT_TRUE(picked);
  EXPECT_EQ(loops.queue.ready_with(9), std::vector{SessionId{3 - picked->value}});
}

TEST(Queue, company_that_does_not_come_is_waited_for_two_of_its_gaps) {
  TwoLoops loops(20 * kMs, kMs, 9);
  EXPECT_TRUE(loops.queue.is_worth_waiting(loops.now_ns + 3 * kMs / 2));
  EXPECT_FALSE(loops.queue.is_worth_waiting(loops.now_ns + 2 * kMs));
}

TEST(Queue, nobody_waits_for_what_takes_long_to_come_or_is_no_company) {
  for (auto& [step_ns, key] : {std::pair{3 * kMs, uint64_t{9}}, std::pair{20 * kMs, uint64_t{0}}}) {
    TwoLoops loops(step_ns, kMs, key);
    EXPECT_FALSE(loops.queue.is_worth_waiting(loops.now_ns + kLingerNs));
  }
  Queue alone(SchedulePolicy::kFair);
  alone.add(SessionId{1}, ServiceClass::kNormal);
  for (uint64_t now_ns = kMs; now_ns < kNsPerSecond; now_ns += 21 * kMs) {
    alone.enqueue({SessionId{1}, Arrival::kNext, 20 * kMs, 9}, now_ns);
    ASSERT_FALSE(alone.is_worth_waiting(now_ns));
    ASSERT_TRUE(alone.pick(now_ns));
    alone.charge(SessionId{1}, 20 * kMs);
  }
}

TEST(Queue, company_that_is_ready_with_a_short_step_does_that_first) {
  TwoLoops loops(20 * kMs, kMs, 9);
  const auto submit = [&](uint64_t predicted_ns, uint64_t key) {
    loops.queue.enqueue({SessionId{2}, Arrival::kNext, predicted_ns, key}, loops.now_ns);
  };
  for (int step = 0; step < 2; ++step) {
    submit(kMs, 0);
    ASSERT_EQ(loops.queue.pick(loops.now_ns), SessionId{2});
    loops.now_ns += kMs;
    loops.queue.charge(SessionId{2}, kMs);
  }
  submit(20 * kMs, 9);
  ASSERT_EQ(loops.queue.pick(loops.now_ns), SessionId{1});
  EXPECT_EQ(loops.queue.ready_with(9), std::vector{SessionId{2}});
}

TEST(Queue, company_has_no_more_than_a_quarter_of_a_step_before_the_other) {
  TwoLoops loops(20 * kMs, kMs, 9);
  uint64_t given_ns = 0;
  for (bool goes_on = true; goes_on && given_ns < kNsPerSecond;) {
    loops.queue.enqueue({SessionId{2}, Arrival::kNext, kMs, 0}, loops.now_ns);
    const auto picked = loops.queue.pick(loops.now_ns);
    ASSERT_TRUE(picked);
    goes_on = *picked == SessionId{2};
    loops.now_ns += goes_on ? kMs : 20 * kMs;
    loops.queue.charge(*picked, goes_on ? kMs : 20 * kMs);
    given_ns += goes_on ? kMs : 0;
  }
  EXPECT_GT(given_ns, 0u);
  EXPECT_LE(given_ns, 26 * kMs);
}

TEST(Queue, who_has_left_is_not_waited_for) {
  TwoLoops loops(20 * kMs, kMs, 9);
  loops.queue.remove(SessionId{2});
  EXPECT_FALSE(loops.queue.is_worth_waiting(loops.now_ns + kLingerNs));
}

// --- slices

// Sessions that always have a next step; long ones are paused between operators of a millisecond.
class SlicedLane {
 public:
  struct Party {
    uint64_t step_ns = 0;
    ServiceClass service = ServiceClass::kNormal;
    uint64_t given_ns = 0;
    uint64_t steps = 0;
    uint64_t ended_ns = 0;  // its last step, or slice
    uint64_t gap_ns = 0;    // the longest between two ends
    uint64_t given_up = 0;  // runs
  };

  uint64_t add(uint64_t step_ns, ServiceClass service = ServiceClass::kNormal) {
    parties.push_back({step_ns, service});
    const uint64_t id = parties.size();
    queue.add(SessionId{id}, service);
    enqueue(id, Arrival::kWoke);
    return id;
  }
  Party& of(uint64_t id) { return parties[id - 1]; }
  void run_until(uint64_t end_ns) {
    while (now_ns < end_ns) run(*queue.pick(now_ns), end_ns);
  }

  Queue queue{SchedulePolicy::kFair};
  std::deque<Party> parties;
  uint64_t now_ns = 0;
  uint64_t event_ns = UINT64_MAX;  // when it happens, also in the midst of a run
  std::function<void()> event;

 private:
  static bool is_long(const Party& party) { return party.step_ns > kUnitNs; }
  void enqueue(uint64_t id, Arrival arrival) {
    const Party& party = of(id);
    queue.enqueue({SessionId{id}, arrival, party.step_ns, 0, is_long(party)}, now_ns);
  }
  void pass(uint64_t id, uint64_t ns) {
    now_ns += ns;
    Party& party = of(id);
    party.given_ns += ns;
    party.gap_ns = std::max(party.gap_ns, now_ns - party.ended_ns);
    party.ended_ns = now_ns;
    if (now_ns < event_ns) return;
    event_ns = UINT64_MAX;
    event();
  }
  void run(SessionId session, uint64_t end_ns) {
    const uint64_t id = session.value;
    const bool done = !is_long(of(id)) || run_in_slices(id, end_ns);
    uint64_t last_ns = of(id).step_ns;
    if (is_long(of(id))) last_ns = 0;
    if (last_ns > 0) pass(id, last_ns);
    queue.charge(session, last_ns);
    if (done) ++of(id).steps;
    if (!done) ++of(id).given_up;
    enqueue(id, Arrival::kGoesOn);
  }
  // Whether it came to its end.
  bool run_in_slices(uint64_t id, uint64_t end_ns) {
    const SessionId session{id};
    uint64_t ends_ns = kUnitNs;
    for (uint64_t left_ns = of(id).step_ns;;) {
      const uint64_t slice_ns = std::min(left_ns, ends_ns + kMs);  // to the next operator
      pass(id, slice_ns);
      queue.charge_running(session, slice_ns);
      left_ns -= slice_ns;
      if (left_ns == 0 || now_ns >= end_ns) return true;
      if (!queue.has_slices()) queue.begin_slices(session);
      if (queue.must_give_up()) return false;
      if (!queue.has_ready()) continue;
      queue.end_slice(session);
      for (auto next = *queue.pick(now_ns); next != session; next = *queue.pick(now_ns)) {
        EXPECT_FALSE(is_long(of(next.value))) << "one is enough";
        pass(next.value, of(next.value).step_ns);
        queue.charge(next, of(next.value).step_ns);
        ++of(next.value).steps;
        enqueue(next.value, Arrival::kGoesOn);
      }
      ends_ns = queue.slice_ns();
    }
  }
};

TEST(Queue, a_long_run_and_short_steps_get_halves_and_no_gap_is_longer_than_three_units) {
  for (const uint64_t step_ms : {1, 5, 15, 20}) {
    SlicedLane lane;
    const uint64_t prompt = lane.add(1000 * kMs);
    const uint64_t decoder = lane.add(step_ms * kMs);
    lane.run_until(4000 * kMs);
    EXPECT_NEAR(double(lane.of(decoder).given_ns), double(lane.of(prompt).given_ns), 50.0 * kMs);
    EXPECT_LE(lane.of(decoder).gap_ns, 3 * kUnitNs) << step_ms;
    EXPECT_GE(lane.of(prompt).steps, 1u);
  }
}

// A slice ends when the run is owed nothing: a step that is a little longer than a unit does not
// wait for two of them.
TEST(Queue, a_step_beside_a_long_run_waits_for_about_as_long_as_it_takes) {
  SlicedLane lane;
  lane.add(4000 * kMs);
  const uint64_t decoder = lane.add(19 * kMs);
  lane.run_until(2000 * kMs);
  EXPECT_LE(lane.of(decoder).gap_ns, 19 * kMs + 28 * kMs);
}

TEST(Queue, a_run_that_is_far_ahead_or_behind_has_slices_within_their_bounds) {
  for (const uint64_t ran_ns : {uint64_t{0}, UINT64_MAX / 2}) {
    Queue queue(SchedulePolicy::kFair);
    for (uint64_t id = 1; id <= 4096; ++id) {
      queue.add(SessionId{id}, ServiceClass::kInteractive);
      queue.enqueue({SessionId{id}, Arrival::kWoke, kMs}, 0);
    }
    const SessionId picked = *queue.pick(0);
    queue.begin_slices(picked);
    queue.charge_running(picked, ran_ns);
    EXPECT_GE(queue.slice_ns(), kUnitNs / 4);
    EXPECT_LE(queue.slice_ns(), kUnitNs);
  }
}

TEST(Queue, of_several_long_runs_each_has_its_turn_and_a_short_one_no_longer_gaps) {
  SlicedLane lane;
  std::vector<uint64_t> prompts;
  for (int i = 0; i < 3; ++i) prompts.push_back(lane.add(500 * kMs));
  const uint64_t decoder = lane.add(10 * kMs);
  lane.run_until(16'000 * kMs);
  for (const uint64_t id : prompts) {
    EXPECT_NEAR(double(lane.of(id).given_ns), 4'000.0 * kMs, 600.0 * kMs) << "a quarter";
    EXPECT_LE(lane.of(id).gap_ns, 3'000 * kMs) << "two others, and a quarter for the short one";
  }
  EXPECT_NEAR(double(lane.of(decoder).given_ns), 4'000.0 * kMs, 600.0 * kMs);
  EXPECT_LE(lane.of(decoder).gap_ns, 6 * kUnitNs);
}

TEST(Queue, long_runs_of_all_lengths_and_short_steps_beside_them_get_about_the_same_time) {
  SlicedLane lane;
  for (const uint64_t ms : {150, 110, 75, 400, 30, 3, 12}) lane.add(ms * kMs);
  lane.run_until(60'000 * kMs);
  const double share = 60'000.0 * kMs / 7;
  for (const SlicedLane::Party& party : lane.parties) {
    EXPECT_NEAR(double(party.given_ns), share, 0.3 * share) << party.step_ns;
  }
}

TEST(Queue, of_two_long_runs_the_shorter_one_has_more_turns) {
  SlicedLane lane;
  const uint64_t shorter = lane.add(100 * kMs);
  const uint64_t longer = lane.add(400 * kMs);
  lane.run_until(20'000 * kMs);
  EXPECT_NEAR(double(lane.of(shorter).given_ns), double(lane.of(longer).given_ns), 800.0 * kMs);
}

TEST(Queue, who_is_held_lends_its_weight) {
  SlicedLane lane;
  const uint64_t batch = lane.add(2000 * kMs, ServiceClass::kBatch);
  const uint64_t decoder = lane.add(10 * kMs, ServiceClass::kNormal);
  uint64_t batch_ns = 0, decoder_ns = 0;
  lane.event_ns = 600 * kMs;
  lane.event = [&] {
    batch_ns = lane.of(batch).given_ns;
    decoder_ns = lane.of(decoder).given_ns;
    lane.add(400 * kMs, ServiceClass::kInteractive);
  };
  lane.run_until(1200 * kMs);
  EXPECT_NEAR(double(batch_ns), 200.0 * kMs, 60.0 * kMs) << "1 to 2";
  EXPECT_NEAR(double(lane.of(batch).given_ns - batch_ns), 600.0 * kMs * 5 / 7, 60.0 * kMs)
      << "5 to 2";
}

TEST(Queue, an_idle_run_is_given_up_for_a_long_one_of_another_class_and_not_for_a_short_one) {
  SlicedLane lane;
  const uint64_t idle = lane.add(300 * kMs, ServiceClass::kIdle);
  lane.run_until(100 * kMs);
  lane.add(100 * kMs);
  lane.run_until(1000 * kMs);
  EXPECT_GE(lane.of(idle).given_up + lane.of(idle).steps, 1u);
  Queue queue(SchedulePolicy::kFair);
  for (uint64_t id = 1; id <= 4; ++id) {
    queue.add(SessionId{id}, id <= 2 ? ServiceClass::kIdle : ServiceClass::kNormal);
  }
  queue.enqueue({SessionId{1}, Arrival::kWoke, 900 * kMs, 0, true}, 0);
  ASSERT_EQ(queue.pick(0), SessionId{1});
  queue.begin_slices(SessionId{1});
  queue.enqueue({SessionId{2}, Arrival::kWoke, 900 * kMs, 0, true}, 0);
  queue.enqueue({SessionId{3}, Arrival::kWoke, kMs, 0, false}, 0);
  EXPECT_FALSE(queue.must_give_up());
  queue.enqueue({SessionId{4}, Arrival::kWoke, 900 * kMs, 0, true}, 0);
  EXPECT_TRUE(queue.must_give_up());
  queue.remove(SessionId{4});
  EXPECT_FALSE(queue.must_give_up());
}

TEST(Queue, whoever_leaves_while_a_run_has_slices_leaves_the_others_in_order) {
  Queue queue(SchedulePolicy::kFair);
  for (uint64_t id = 1; id <= 3; ++id) {
    queue.add(SessionId{id}, ServiceClass::kNormal);
    queue.enqueue({SessionId{id}, Arrival::kWoke, 900 * kMs, 0, true}, 0);
  }
  ASSERT_EQ(queue.pick(0), SessionId{1});
  queue.begin_slices(SessionId{1});
  EXPECT_FALSE(queue.has_ready());
  queue.charge_running(SessionId{1}, 25 * kMs);
  queue.end_slice(SessionId{1});
  queue.remove(SessionId{3});
  ASSERT_EQ(queue.pick(0), SessionId{1});
  EXPECT_EQ(queue.decisions().back().reason, PickReason::kSlice);
  queue.remove(SessionId{1});
  EXPECT_FALSE(queue.has_slices());
  EXPECT_EQ(queue.pick(0), SessionId{2});
  queue.charge(SessionId{2}, kMs);
  EXPECT_FALSE(queue.has_ready());
}

// --- what is lent

// The first session's run has slices, and the other sessions' long steps are held meanwhile.
struct Lent {
  explicit Lent(std::vector<ServiceClass> services) : services_of(std::move(services)) {
    for (uint64_t id = 1; id <= services_of.size(); ++id) {
      queue.add(SessionId{id}, services_of[id - 1]);
      queue.enqueue({SessionId{id}, Arrival::kWoke, kNsPerSecond, 0, true}, 0);
      if (id > 1) continue;
      EXPECT_EQ(queue.pick(0), SessionId{1});
      queue.begin_slices(SessionId{1});
    }
  }
  void compute(uint64_t ns) { queue.charge_running(SessionId{1}, ns); }
  // In time of the lane; negative: it is owed that.
  [[nodiscard]] double owes_ms(uint64_t id) const {
    constexpr std::array<double, kServiceClasses> kWeights{4, 2, 1, 1};
    const double weight = kWeights[static_cast<size_t>(services_of[id - 1])];
    return double(QueueForTests::borrowed_ns(queue, SessionId{id})) * weight / 4 / kMs;
  }

  Queue queue{SchedulePolicy::kFair};
  std::vector<ServiceClass> services_of;
};

constexpr double kRoundedMs = 0.001;

TEST(Lent, each_lender_is_owed_by_its_weight_what_the_run_owes) {
  Lent lent({ServiceClass::kNormal, ServiceClass::kInteractive, ServiceClass::kBatch});
  lent.compute(70 * kMs);
  EXPECT_NEAR(lent.owes_ms(1), 50, kRoundedMs);
  EXPECT_NEAR(lent.owes_ms(2), -40, kRoundedMs);
  EXPECT_NEAR(lent.owes_ms(3), -10, kRoundedMs);
}

TEST(Lent, whose_class_runs_after_all_others_neither_lends_to_them_nor_borrows) {
  Lent lent({ServiceClass::kNormal, ServiceClass::kIdle, ServiceClass::kBatch});
  lent.compute(30 * kMs);
  EXPECT_NEAR(lent.owes_ms(1), 10, kRoundedMs);
  EXPECT_NEAR(lent.owes_ms(2), 0, kRoundedMs);
  EXPECT_NEAR(lent.owes_ms(3), -10, kRoundedMs);
}

TEST(Lent, a_lender_that_leaves_takes_what_it_lent_off_the_debt_and_no_more) {
  Lent lent({ServiceClass::kNormal, ServiceClass::kInteractive, ServiceClass::kBatch});
  lent.compute(70 * kMs);
  lent.queue.remove(SessionId{3});
  EXPECT_NEAR(lent.owes_ms(1), 40, kRoundedMs);
  EXPECT_NEAR(lent.owes_ms(2), -40, kRoundedMs);
  lent.compute(60 * kMs);
  EXPECT_NEAR(lent.owes_ms(1), 80, kRoundedMs) << "4 parts of 6 are lent now";
}

TEST(Lent, when_a_run_leaves_those_who_lent_are_owed_it_and_share_by_their_weights) {
  Lent lent({ServiceClass::kNormal, ServiceClass::kInteractive, ServiceClass::kBatch});
  lent.compute(700 * kMs);
  lent.queue.remove(SessionId{1});
  EXPECT_FALSE(lent.queue.has_slices());
  EXPECT_NEAR(lent.owes_ms(2), -400, kRoundedMs);
  EXPECT_NEAR(lent.owes_ms(3), -100, kRoundedMs);
  std::array<uint64_t, 4> given_ms{};
  for (uint64_t ms = 0; ms < 500; ++ms) {
    const auto picked = lent.queue.pick(0);
    ASSERT_TRUE(picked);
    ++given_ms[picked->value];
    lent.queue.charge(*picked, kMs);
    lent.queue.enqueue({*picked, Arrival::kGoesOn, kMs}, 0);
  }
  EXPECT_NEAR(double(given_ms[2]), 400, 2);
  EXPECT_NEAR(double(given_ms[3]), 100, 2);
}

TEST(Lent, what_a_run_that_left_owes_is_not_taken_off_the_debts_of_others) {
  Lent lent({ServiceClass::kNormal, ServiceClass::kNormal});
  lent.compute(40 * kMs);
  lent.queue.remove(SessionId{1});
  EXPECT_NEAR(lent.owes_ms(2), -20, kRoundedMs);
  ASSERT_EQ(lent.queue.pick(0), SessionId{2});
  lent.queue.charge(SessionId{2}, kMs);

  for (const uint64_t id : {3, 4}) {
    lent.services_of.resize(id, ServiceClass::kNormal);
    lent.queue.add(SessionId{id}, ServiceClass::kNormal);
    lent.queue.enqueue({SessionId{id}, Arrival::kWoke, kNsPerSecond, 0, true}, 0);
    if (id > 3) continue;
    ASSERT_EQ(lent.queue.pick(0), SessionId{3});
    lent.queue.begin_slices(SessionId{3});
  }
  lent.queue.charge_running(SessionId{3}, 10 * kMs);
  lent.queue.remove(SessionId{2});
  EXPECT_NEAR(lent.owes_ms(3), 5, kRoundedMs) << "it had nothing of the one that leaves";
  EXPECT_NEAR(lent.owes_ms(4), -5, kRoundedMs);
}

TEST(Lent, a_long_step_that_is_cancelled_has_lent_nothing_and_is_next) {
  Lent lent({ServiceClass::kNormal, ServiceClass::kInteractive, ServiceClass::kBatch});
  lent.compute(70 * kMs);
  lent.queue.withdraw(SessionId{2});
  EXPECT_NEAR(lent.owes_ms(1), 10, kRoundedMs);
  EXPECT_NEAR(lent.owes_ms(2), 0, kRoundedMs);
  EXPECT_NEAR(lent.owes_ms(3), -10, kRoundedMs);
  lent.queue.end_slice(SessionId{1});
  EXPECT_EQ(lent.queue.pick(0), SessionId{2});
  lent.queue.charge(SessionId{2}, 0);
  lent.queue.resume(SessionId{1}, 0);
  lent.compute(30 * kMs);
  EXPECT_NEAR(lent.owes_ms(1), 20, kRoundedMs) << "1 part of 3 is lent now";
}

// No long step begins that pays anything back.
TEST(Lent, whoever_comes_is_cancelled_and_leaves_beside_a_run_all_debts_are_all_loans) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    const auto some_class = [&] { return static_cast<ServiceClass>(random() % kServiceClasses); };
    std::vector<ServiceClass> services(8);
    std::ranges::generate(services, some_class);
    Lent lent(services);
    for (int i = 0; i < 60; ++i) {
      const SessionId id{2 + random() % 7};
      switch (random() % 4) {
        case 0:
          lent.queue.withdraw(id);
          break;
        case 1:
          lent.queue.let_go(id);
          break;
        case 2:
          lent.queue.remove(id);
          lent.services_of[id.value - 1] = some_class();
          lent.queue.add(id, lent.services_of[id.value - 1]);
          lent.queue.enqueue({id, Arrival::kWoke, kNsPerSecond, 0, true}, 0);
          break;
        default:
          lent.compute(random() % 10 * kMs);
      }
      double owed_ms = 0;
      for (uint64_t one = 1; one <= services.size(); ++one) owed_ms += lent.owes_ms(one);
      ASSERT_NEAR(owed_ms, 0, kRoundedMs) << "seed " << seed << ", turn " << i;
    }
  }
}

// Long and short steps come, are let in, are cancelled and leave, their runs in slices too.
TEST(FairQueue,
     whatever_sessions_do_beside_runs_in_slices_each_pick_is_ready_and_none_is_forgotten) {
  Queue queue(SchedulePolicy::kFair);
  std::mt19937 random(7);
  const auto below = [&](uint64_t n) { return random() % n; };
  struct Party {
    bool is_here = false;
    bool is_queued = false;
    ServiceClass service = ServiceClass::kNormal;
  };
  std::vector<Party> parties(30);
  const auto party_of = [&](SessionId id) -> Party& { return parties[id.value - 1]; };
  const auto is_ready = [&](SessionId id) {
    return party_of(id).is_queued && !queue.held().contains(id);
  };
  SessionId computed;  // that is picked
  uint64_t now_ns = 0;
  for (int i = 0; i < 200'000; ++i) {
    const SessionId id{1 + below(parties.size())};
    Party& party = party_of(id);
    if (!party.is_here) {
      party = {true, false, static_cast<ServiceClass>(below(kServiceClasses))};
      queue.add(id, party.service);
    } else if (below(50) == 0) {
      queue.remove(id);
      party = {};
      if (computed == id) computed = {};
    } else if (!party.is_queued && id != computed) {
      party.is_queued = true;
      queue.enqueue({id, static_cast<Arrival>(below(4)), below(300 * kMs), 0, below(3) == 0},
                    now_ns);
    } else if (below(20) == 0) {
      below(2) == 0 ? queue.withdraw(id) : queue.let_go(id);
    }
    size_t accounts = 0, ready = 0;
    for (uint64_t one = 1; one <= parties.size(); ++one) {
      accounts += party_of(SessionId{one}).is_here;
      ready += is_ready(SessionId{one});
    }
    ASSERT_EQ(QueueForTests::accounts(queue), accounts);
    ASSERT_EQ(queue.has_ready(), ready > 0);
    for (const SessionId one : queue.held()) ASSERT_TRUE(party_of(one).is_queued);
    now_ns += below(10 * kMs);
    if (!computed.valid()) {
      const auto picked = queue.pick(now_ns);
      ASSERT_EQ(picked.has_value(), ready > 0);
      if (!picked) continue;
      ASSERT_TRUE(is_ready(*picked));
      computed = *picked;
      party_of(computed).is_queued = false;
      continue;
    }
    const bool has_slices = queue.slicing() == computed;
    if (!queue.has_slices() && below(2) == 0) {
      queue.begin_slices(computed);
    } else if (has_slices && below(8) != 0) {
      queue.charge_running(computed, below(30 * kMs));
      if (!queue.has_ready() || below(2) == 0) continue;
      queue.end_slice(computed);
      party_of(std::exchange(computed, {})).is_queued = true;
    } else {
      queue.charge(std::exchange(computed, {}), below(60 * kMs));
      ASSERT_FALSE(has_slices && queue.has_slices());
    }
  }
  for (uint64_t id = 1; id <= parties.size(); ++id) queue.remove(SessionId{id});
  EXPECT_EQ(QueueForTests::accounts(queue), 0u);
  EXPECT_FALSE(queue.has_ready() || queue.has_slices());
  EXPECT_TRUE(queue.held().empty());
}

// --- decisions

TEST(Queue, a_decision_says_what_it_was_taken_by) {
  Queue queue(SchedulePolicy::kFair);
  queue.add(SessionId{1}, ServiceClass::kInteractive);
  queue.add(SessionId{2}, ServiceClass::kBatch);
  queue.enqueue({SessionId{1}, Arrival::kNext, 8 * kMs, 0}, 0);
  queue.enqueue({SessionId{2}, Arrival::kNext, kMs, 0}, 0);
  ASSERT_EQ(queue.pick(77), SessionId{2});  // 1 ms at the weight 1 is 4 virtual ones
  queue.charge(SessionId{2}, 2 * kMs);
  ASSERT_EQ(queue.pick(78), SessionId{1});
  const auto decisions = queue.decisions();
  ASSERT_EQ(decisions.size(), 2u);
  const Decision first{
      1, SessionId{2}, ServiceClass::kBatch, PickReason::kDeadline, 77, 2, 0, 4 * kMs, kMs, 2 * kMs,
      {}};
  EXPECT_EQ(decisions[0], first);
  const Decision second{
      2, SessionId{1}, ServiceClass::kInteractive, PickReason::kOnly, 78, 1, 0, 8 * kMs, 8 * kMs, 0,
      {}};
  EXPECT_EQ(decisions[1], second);
}

TEST(Queue, the_last_decisions_are_kept_in_their_order) {
  Lane lane;
  lane.add({always(kMs)});
  lane.run_until(1000 * kMs);
  const auto decisions = lane.queue.decisions();
  ASSERT_EQ(decisions.size(), kDecisions);
  for (size_t i = 0; i < kDecisions; ++i) {
    EXPECT_EQ(decisions[i].number, 1000 - kDecisions + 1 + i);
    EXPECT_EQ(decisions[i].measured_ns, kMs);
  }
}

TEST(Queue, policies_and_classes_have_names_that_say_them_back) {
  for (const SchedulePolicy policy : {SchedulePolicy::kFair, SchedulePolicy::kFifo}) {
    EXPECT_EQ(schedule_policy_of(name_of(policy)), policy);
  }
  EXPECT_EQ(schedule_policy_of("lottery"), std::nullopt);
  for (size_t i = 0; i < kServiceClasses; ++i) {
    const auto service = static_cast<ServiceClass>(i);
    EXPECT_EQ(service_class_of(name_of(service)), service);
  }
  EXPECT_EQ(service_class_of("realtime"), std::nullopt);
}

}  // namespace
}  // namespace djinn::sched
