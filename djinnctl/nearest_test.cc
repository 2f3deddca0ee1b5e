// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace djinn::ctl {
namespace {

const std::vector<std::string> kVerbs{"status", "sessions", "ps", "top", "unload", "unpin"};

TEST(Nearest, a_letter_too_many_too_few_or_another_one_is_put_right) {
  EXPECT_EQ(nearest("psx", kVerbs), "ps");
  EXPECT_EQ(nearest("session", kVerbs), "sessions");
  EXPECT_EQ(nearest("stetus", kVerbs), "status");
}

TEST(Nearest, the_fewest_changes_win_and_then_the_first) {
  EXPECT_EQ(nearest("unpi", kVerbs), "unpin");
  EXPECT_EQ(nearest("tops", kVerbs), "top");
  EXPECT_EQ(nearest("ts", kVerbs), "ps");
}

TEST(Nearest, a_word_like_none_of_them_has_no_nearest) {
  EXPECT_EQ(nearest("generate", kVerbs), "");
  EXPECT_EQ(nearest("", kVerbs), "");
  EXPECT_EQ(nearest("ps", {}), "");
}

}  // namespace
}  // namespace djinn::ctl
