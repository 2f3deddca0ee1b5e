// SPDX-License-Identifier: Apache-2.0

#include "ipc/time_histogram.h"

#include <gtest/gtest.h>

#include <limits>

namespace djinn::ipc {
namespace {

TEST(TimeHistogramTest, bounds_rise_and_each_time_is_in_the_first_bucket_that_is_wide_enough) {
  for (size_t i = 0; i < kTimeBoundsNs.size(); ++i) {
    if (i > 0) {
      EXPECT_GT(kTimeBoundsNs[i], kTimeBoundsNs[i - 1]);
    }
    EXPECT_EQ(time_bucket(kTimeBoundsNs[i]), i);
    EXPECT_EQ(time_bucket(kTimeBoundsNs[i] + 1), i + 1);
  }
  EXPECT_EQ(time_bucket(0), 0u);
  EXPECT_EQ(time_bucket(std::numeric_limits<uint64_t>::max()), kTimeBuckets - 1);
}

TEST(TimeHistogramTest, a_time_is_counted_once_and_summed) {
  TimeHistogram times;
  times.note(30'000);
  times.note(30'001);
  times.note(uint64_t{1} << 50);
  EXPECT_EQ(times.counts[2], 2u);
  EXPECT_EQ(times.counts[kTimeBuckets - 1], 1u);
  EXPECT_EQ(times.sum_ns, 60'001 + (uint64_t{1} << 50));
}

}  // namespace
}  // namespace djinn::ipc
