// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/step_times.h"

#include <gtest/gtest.h>

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
