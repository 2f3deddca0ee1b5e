// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/wrap.h"

#include <gtest/gtest.h>

namespace djinn {
namespace {

TEST(Wrap, lines_are_as_full_as_the_columns_allow) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 6), "one\ntwo\nthree");
  EXPECT_EQ(wrapped("one two three", 13), "one two three");
  EXPECT_EQ(wrapped("", 7), "");
}

TEST(Wrap, a_word_that_is_too_long_has_a_line_of_its_own) {
  EXPECT_EQ(wrapped("a longest b", 3), "a\nlongest\nb");
  EXPECT_EQ(wrapped("longest", 3), "longest");
}

}  // namespace
}  // namespace djinn
