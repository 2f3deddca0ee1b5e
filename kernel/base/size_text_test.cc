// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/size_text.h"

#include <gtest/gtest.h>

namespace djinn {
namespace {

TEST(Size, uses_iec_units_and_never_reads_as_the_next_one) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1024), "1.0 KiB");
  EXPECT_EQ(size_text(1536), "1.5 KiB");
  EXPECT_EQ(size_text(102'400), "100 KiB");
  EXPECT_EQ(size_text((1u << 20) - 1), "1.0 MiB");
  EXPECT_EQ(size_text(uint64_t{16} << 30), "16.0 GiB");
  EXPECT_EQ(size_text(UINT64_MAX), "16.0 EiB");
}

TEST(Count, one_is_no_plural) {
  EXPECT_EQ(count_text(0, "file"), "0 files");
  EXPECT_EQ(count_text(1, "file"), "1 file");
  EXPECT_EQ(count_text(2, "file"), "2 files");
}

}  // namespace
}  // namespace djinn
