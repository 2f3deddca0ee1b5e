// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/progress.h"

#include <gtest/gtest.h>

#include "djinnctl/text.h"
#include "kernel/base/clock.h"

namespace djinn::ctl {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(Progress, tells_label_percent_bar_sizes_rate_and_what_remains) {
  const ProgressLook first{0, 100 * kMiB, 10 * kNsPerSecond};
  const ProgressLook now{25 * kMiB, 100 * kMiB, 15 * kNsPerSecond};
  EXPECT_EQ(Progress::line("bert", first, now, 80),
            "bert   25%  [######....................]  25.0 MiB/100 MiB  5.0 MiB/s  15s left");
}

TEST(Progress, has_no_rate_before_there_is_one) {
  const ProgressLook first{5 * kMiB, 10 * kMiB, kNsPerSecond};
  EXPECT_EQ(Progress::line("bert", first, first, 50),
            "bert   50%  [########.........]  5.0 MiB/10.0 MiB");
  // Time has passed, but nothing was done.
  const ProgressLook later{5 * kMiB, 10 * kMiB, 9 * kNsPerSecond};
  EXPECT_EQ(Progress::line("bert", first, later, 50), Progress::line("bert", first, first, 50));
}

TEST(Progress, of_unknown_size_waits) {
  EXPECT_EQ(Progress::line("bert", {}, {}, 80), "bert  waiting");
}

TEST(Progress, a_name_from_right_to_left_turns_no_figure) {
  const std::string line = Progress::line("\u05d0\u05d1", {}, {50, 100, 0}, 60);
  EXPECT_TRUE(line.starts_with("\u2068\u05d0\u05d1\u2069   50%")) << line;
}

TEST(Progress, is_100_percent_only_when_all_is_done) {
  const std::string almost = Progress::line("m", {}, {1000 * kMiB - 1, 1000 * kMiB, 0}, 80);
  EXPECT_NE(almost.find(" 99%"), std::string::npos);
  EXPECT_NE(almost.find(".]"), std::string::npos);
  const std::string all = Progress::line("m", {}, {kMiB, kMiB, 0}, 80);
  EXPECT_NE(all.find("100%"), std::string::npos);
  EXPECT_EQ(all.find('.'), all.find("1.0 MiB") + 1);
}

TEST(Progress, fits_every_terminal) {
  const std::string label = "a-model-whose-name-goes-on-and-on-and-on";
  const ProgressLook first{0, 999 * kMiB, 0};
  for (size_t columns = 1; columns < 200; ++columns) {
    for (const uint64_t done : {uint64_t{0}, 12 * kMiB, 999 * kMiB, 2000 * kMiB}) {
      const ProgressLook now{done, 999 * kMiB, 3600 * kNsPerSecond};
      EXPECT_LT(width_of(Progress::line(label, first, now, columns)), columns);
      EXPECT_LT(width_of(Progress::line(label, {}, {}, columns)), columns);
    }
  }
}

TEST(Progress, a_clock_that_stands_still_gives_no_rate) {
  const ProgressLook first{0, 10, 7};
  EXPECT_EQ(Progress::line("m", first, {5, 10, 7}, 60).find("/s"), std::string::npos);
  EXPECT_EQ(Progress::line("m", first, {5, 10, 3}, 60).find("/s"), std::string::npos);
}

}  // namespace
}  // namespace djinn::ctl
