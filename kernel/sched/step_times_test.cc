// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/step_times.h"

#include <gtest/gtest.h>

#include <utility>

namespace djinn::sched {
namespace {

TEST(StepTimes, a_kind_takes_as_long_as_its_last_steps_did_on_the_mean) {
  StepTimes times;
  times.note(1, 1000);
  EXPECT_EQ(times.predict_ns(1), 1000u);
  times.note(1, 3000);
  EXPECT_EQ(times.predict_ns(1), 2000u);
  for (int i = 0; i < 100; ++i) times.note(1, 50'000);
  EXPECT_NEAR(static_cast<double>(times.predict_ns(1)), 50'000, 100);
  for (int i = 0; i < 100; ++i) times.note(1, 10);
  EXPECT_NEAR(static_cast<double>(times.predict_ns(1)), 10, 10);
}

TEST(StepTimes, kinds_are_told_apart_and_an_unknown_one_is_taken_for_the_mean) {
  StepTimes times;
  EXPECT_EQ(times.predict_ns(7), 0u);
  times.note(1, 1000);
  times.note(2, 9000);
  EXPECT_EQ(times.predict_ns(1), 1000u);
  EXPECT_EQ(times.predict_ns(2), 9000u);
  EXPECT_EQ(times.predict_ns(3), 5000u);
}

// A host of which nothing was known: 1 us an operator, 20 GB/s, 100 GFLOP/s.
uint64_t took_ns(const Work& work) {
  return work.operators * 1000 + work.bytes / 20 + work.flops / 100;
}

TEST(StepTimes, a_kind_that_never_ran_is_predicted_by_the_rates_of_others) {
  StepTimes times;
  const Work decode{300, 500'000'000, 0};
  const Work prefill{300, 40'000'000, 90'000'000'000};
  const Work tiny{1500, 3'000'000, 0};
  for (uint64_t kind = 1; const Work& work : {decode, prefill, tiny}) {
    times.expect(kind, work, Kernels::kExact);
    EXPECT_TRUE(times.knows(kind));
    for (int i = 0; i < 8; ++i) times.note(kind, took_ns(work));
    ++kind;
  }
  const Work other{800, 200'000'000, 5'000'000'000};
  EXPECT_FALSE(times.knows(9));
  times.expect(9, other, Kernels::kExact);
  const double near =
      static_cast<double>(times.predict_ns(9)) / static_cast<double>(took_ns(other));
  EXPECT_NEAR(near, 1.0, 0.2);
  times.note(9, 2 * 123);
  EXPECT_EQ(times.predict_ns(9), 2 * 123u);
  times.note(9, 123);  // the first one recorded its plan, and says nothing of the others
  EXPECT_EQ(times.predict_ns(9), 123u);
}

TEST(StepTimes, a_first_step_of_its_kind_takes_longer_if_others_did) {
  StepTimes times;
  const Work work{300, 500'000'000, 0};
  for (uint64_t kind = 1; kind <= 20; ++kind) {
    times.expect(kind, work, Kernels::kFast);
    times.note(kind, 2 * took_ns(work));
    for (int i = 0; i < 8; ++i) times.note(kind, took_ns(work));
  }
  times.expect(99, work, Kernels::kFast);
  EXPECT_NEAR(static_cast<double>(times.predict_ns(99)), 2.0 * static_cast<double>(took_ns(work)),
              0.2 * static_cast<double>(took_ns(work)));
}

// A prompt's plan is recorded of a run of up to twice its rows, a token's of one like it.
TEST(StepTimes, first_steps_that_wait_for_arithmetic_are_told_apart) {
  StepTimes times;
  const Work token{300, 500'000'000, 1'000'000'000}, prompt{300, 5'000'000, 90'000'000'000};
  for (uint64_t kind = 1; kind <= 20; ++kind) {
    const Work& work = kind % 2 == 0 ? token : prompt;
    times.expect(kind, work, Kernels::kFast);
    times.note(kind, (kind % 2 == 0 ? 2 : 3) * took_ns(work));
    for (int i = 0; i < 8; ++i) times.note(kind, took_ns(work));
  }
  for (const auto& [work, factor] : {std::pair(token, 2.0), std::pair(prompt, 3.0)}) {
    times.expect(99, work, Kernels::kFast);
    const auto alone = static_cast<double>(took_ns(work));
    EXPECT_NEAR(static_cast<double>(times.predict_ns(99)), factor * alone, 0.2 * alone);
  }
}

TEST(Rates, no_rate_is_negative_whatever_was_measured) {
  Rates rates;
  for (uint64_t i = 1; i <= 200; ++i) {
    rates.note({i % 7 * 100, i % 5 * 1'000'000, i % 3 * 1'000'000'000}, 1 + i * i % 1013 * 1000);
    for (const Work& one : {Work{1000, 0, 0}, Work{0, 1'000'000, 0}, Work{0, 0, 1'000'000'000}}) {
      EXPECT_LT(rates.predict_ns(one), 1'000'000'000'000u);
    }
  }
  rates.note({}, 5);
  rates.note({UINT64_MAX, UINT64_MAX, UINT64_MAX}, 1);
  rates.note({1, 1, 1}, 0);
  EXPECT_LE(rates.predict_ns({UINT64_MAX, UINT64_MAX, UINT64_MAX}), 1'000'000'000'000'000'000u);
}

TEST(StepTimes, more_kinds_than_places_are_forgotten_and_never_confused) {
  StepTimes times;
  for (uint64_t kind = 1; kind <= 10'000; ++kind) times.note(kind, kind);
  const uint64_t mean = times.predict_ns(20'000);
  size_t known = 0;
  for (uint64_t kind = 1; kind <= 10'000; ++kind) {
    const uint64_t ns = times.predict_ns(kind);
    EXPECT_TRUE(ns == kind || ns == mean) << kind << " is taken for " << ns;
    known += ns == kind ? 1 : 0;
  }
  EXPECT_GT(known, 500u);
}

}  // namespace
}  // namespace djinn::sched
