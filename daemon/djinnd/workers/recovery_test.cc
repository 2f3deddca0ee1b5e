// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/recovery.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace djinn::daemon {
namespace {

gc::Progress died_in_step(uint64_t commit) {
  return {commit, commit + 1, 0, false, {}};
}
gc::Progress died_idle(uint64_t commit) {
  return {commit, 0, 0, false, {}};
}

TEST(DeathCount, three_deaths_in_one_step_exhaust_it) {
  DeathCount count;
  count.note(died_in_step(7));
  count.note(died_in_step(7));
  EXPECT_FALSE(count.exhausted());
  count.note(died_in_step(7));
  EXPECT_TRUE(count.exhausted());
}

TEST(DeathCount, a_commit_between_two_deaths_starts_again) {
  DeathCount count;
  for (uint64_t commit = 1; commit < 100; ++commit) {
    count.note(died_in_step(commit));
    EXPECT_EQ(count.deaths(), 1u);
  }
}

TEST(DeathCount, a_session_that_did_not_run_is_not_to_blame) {
  DeathCount count;
  for (int i = 0; i < 10; ++i) count.note(died_idle(3));
  EXPECT_EQ(count.deaths(), 0u);
}

TEST(DeathCount, a_death_between_two_tries_of_a_step_neither_counts_nor_forgives) {
  DeathCount count;
  count.note(died_in_step(3));
  count.note(died_idle(3));
  count.note(died_in_step(3));
  count.note(died_idle(3));
  EXPECT_EQ(count.deaths(), 2u);
  count.note(died_in_step(3));
  EXPECT_TRUE(count.exhausted());
  count.note(died_idle(4));
  EXPECT_EQ(count.deaths(), 0u);
}

TEST(DeathCount, a_refusal_that_kills_as_often_as_its_run_is_hopeless) {
  DeathCount count;
  for (int i = 0; i < 5; ++i) count.note(died_in_step(7));
  EXPECT_FALSE(count.hopeless());
  count.note(died_in_step(7));
  EXPECT_TRUE(count.hopeless());
}

TEST(DeathCount, the_refusal_itself_is_progress) {
  DeathCount count;
  for (int i = 0; i < 3; ++i) count.note(died_in_step(7));
  ASSERT_TRUE(count.exhausted());
  count.note(died_in_step(8));  // the refusal was committed as step 8
  EXPECT_FALSE(count.exhausted());
}

TEST(BackOff, the_first_death_costs_no_time_and_later_ones_double) {
  BackOff back_off;
  EXPECT_EQ(back_off.after_death(false), 0u);
  EXPECT_EQ(back_off.after_death(false), BackOff::kFirstMs);
  EXPECT_EQ(back_off.after_death(false), 2 * BackOff::kFirstMs);
  for (int i = 0; i < 100; ++i) EXPECT_LE(back_off.after_death(false), BackOff::kMaxMs);
  EXPECT_EQ(back_off.after_death(false), BackOff::kMaxMs);
}

TEST(BackOff, progress_resets_it) {
  BackOff back_off;
  for (int i = 0; i < 10; ++i) back_off.after_death(false);
  EXPECT_EQ(back_off.after_death(true), 0u);
  EXPECT_EQ(back_off.after_death(false), 0u);
}

constexpr uint64_t kMs = 1'000'000;

TEST(Quarantine, who_killed_no_worker_waits_for_nothing) {
  const Quarantine others;
  EXPECT_TRUE(others.is_over(0, false));
}

TEST(Quarantine, a_first_death_costs_no_time_and_the_next_wait_for_a_spare_worker) {
  Quarantine killer;
  killer.note_death(false, 0);
  EXPECT_TRUE(killer.is_over(0, false));
  killer.note_death(false, 0);
  EXPECT_FALSE(killer.is_over(0, true)) << "the back-off";
  EXPECT_FALSE(killer.is_over(BackOff::kMaxMs * kMs, false)) << "others would wait for a start";
  EXPECT_TRUE(killer.is_over(BackOff::kFirstMs * kMs, true));
  for (int i = 0; i < 10; ++i) killer.note_death(false, 0);
  EXPECT_FALSE(killer.is_over((BackOff::kMaxMs - 1) * kMs, true));
  EXPECT_TRUE(killer.is_over(BackOff::kMaxMs * kMs, true));
}

TEST(Quarantine, work_that_was_done_ends_it) {
  Quarantine unlucky;
  for (int i = 0; i < 10; ++i) unlucky.note_death(false, 0);
  unlucky.note_death(true, 0);
  EXPECT_TRUE(unlucky.is_over(0, false));
}

TEST(Newcomers, ten_sessions_that_end_a_worker_each_meet_the_back_off_of_one) {
  Newcomers newcomers;
  uint64_t now_ms = 1'000'000;
  const uint64_t begun_ms = now_ms;
  uint64_t expected_ms = 0;
  for (uint64_t killer = 0; killer < 10; ++killer) {
    while (!newcomers.is_over(now_ms * kMs, true)) ++now_ms;
    newcomers.note_death(now_ms * kMs);
    if (killer > 1) expected_ms += std::min(BackOff::kMaxMs, BackOff::kFirstMs << (killer - 2));
  }
  EXPECT_EQ(now_ms - begun_ms, expected_ms);
  EXPECT_GT(expected_ms, 2 * BackOff::kMaxMs);
  EXPECT_FALSE(newcomers.is_over((now_ms + BackOff::kMaxMs) * kMs, false))
      << "others would wait for a start";
}

TEST(Newcomers, nobody_ends_more_workers_by_waiting_until_the_last_one_is_forgotten) {
  Newcomers patient;
  uint64_t now_ms = 0;
  uint64_t deaths = 0;
  while (now_ms < 100 * BackOff::kMaxMs) {
    patient.note_death(now_ms * kMs);
    ++deaths;
    now_ms += 2 * BackOff::kMaxMs;
    EXPECT_TRUE(patient.is_over(now_ms * kMs, false)) << "it is forgotten";
  }
  EXPECT_LE(deaths, 100u);
}

constexpr uint64_t kLook = 1000;  // from one to the next
constexpr uint64_t kLooksATimeout = 8;

// Gives after how many looks a worker hangs that has so many parts in a thousand of a processor.
uint64_t looks_until_hang(uint64_t permille) {
  OwnTime own;
  HangWatch watch(kLooksATimeout * kLook);
  for (uint64_t look = 0;; ++look) {
    const uint64_t now = own.look(1'000'000 + look * kLook, 500 + look * permille, kLook);
    if (watch.look(now, {true, 5, false})) return look;
  }
}

TEST(OwnTime, who_has_a_processor_or_stands_still_hangs_after_the_timeout) {
  EXPECT_EQ(looks_until_hang(0), kLooksATimeout);
  EXPECT_EQ(looks_until_hang(5), kLooksATimeout) << "what answers now and then computes, too";
  EXPECT_EQ(looks_until_hang(1000), kLooksATimeout);
  EXPECT_EQ(looks_until_hang(16'000), kLooksATimeout) << "sixteen threads hang no sooner";
}

TEST(OwnTime, who_is_left_a_part_of_a_processor_has_what_it_lacks_in_addition) {
  EXPECT_EQ(looks_until_hang(500), 2 * kLooksATimeout);
  EXPECT_EQ(looks_until_hang(30), (kLooksATimeout * 1000 + 29) / 30) << "cpu.max of 3 %";
}

TEST(OwnTime, nobody_evades_the_watch_whatever_part_it_computes) {
  for (uint64_t permille = 0; permille < 1100; ++permille) {
    EXPECT_LE(looks_until_hang(permille), kLooksATimeout * OwnTime::kSlowest);
  }
}

TEST(OwnTime, is_never_ahead_of_the_clock_and_never_goes_back) {
  OwnTime own;
  uint64_t cpu = 7'000'000, before = own.look(100, cpu, kLook);
  EXPECT_EQ(before, 0u);
  for (uint64_t look = 1; look < 1000; ++look) {
    cpu = look % 7 == 0 ? 0 : cpu + (look * 37) % 3000;  // 0: the kernel does not say any more
    const uint64_t now = own.look(100 + look * kLook, cpu, kLook);
    EXPECT_GE(now, before);
    EXPECT_LE(now - before, kLook);
    before = now;
  }
}

TEST(OwnTime, while_djinnd_did_not_run_either_no_more_passes_than_until_the_look_was_due) {
  OwnTime own;
  own.look(0, 0, kLook);
  EXPECT_EQ(own.look(3600 * kLook, 0, kLook), kLook) << "the host was suspended";
  EXPECT_EQ(own.look(3601 * kLook, 0, kLook), 2 * kLook);
}

constexpr uint64_t kTimeout = 1000;

TEST(HangWatch, work_without_activity_is_a_hang) {
  HangWatch watch(kTimeout);
  EXPECT_FALSE(watch.look(1, {true, 5, false}));
  EXPECT_FALSE(watch.look(kTimeout, {true, 5, false}));
  EXPECT_TRUE(watch.look(kTimeout + 1, {true, 5, false}));
}

TEST(HangWatch, activity_or_no_work_is_no_hang) {
  HangWatch watch(kTimeout);
  for (uint64_t now = 0; now < 20 * kTimeout; now += kTimeout) {
    EXPECT_FALSE(watch.look(now, {true, now, false}));
  }
  for (uint64_t now = 20 * kTimeout; now < 40 * kTimeout; now += kTimeout) {
    EXPECT_FALSE(watch.look(now, {false, 5, false}));
  }
}

TEST(HangWatch, admission_has_more_patience) {
  HangWatch watch(kTimeout);
  EXPECT_FALSE(watch.look(0, {true, 5, true}));
  EXPECT_FALSE(watch.look(2 * kTimeout, {true, 5, true}));
  EXPECT_TRUE(watch.look(6 * kTimeout, {true, 5, true}));
}

}  // namespace
}  // namespace djinn::daemon
