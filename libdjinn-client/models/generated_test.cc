// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/generated.h"

#include <gtest/gtest.h>

namespace djinn::client {
namespace {

TEST(RowsMade, what_rows_said_stands_beside_why_others_failed) {
  RowsMade made(3);
  EXPECT_TRUE(made.hear({1, 0, 0, 7}));
  EXPECT_TRUE(made.hear({1, 0, 1, 8}));
  EXPECT_TRUE(made.hear({1, 1, 1, 9}));
  made.end(5);
  made.fail(1, {ErrorCode::kOutOfMemory, "There is no more."});
  made.fail(2, not_begun("row 2 before it failed"));
  const Result<Generated> all = std::move(made).take();
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->tokens, (Prompts{{7}, {8, 9}, {}}));
  EXPECT_FALSE(all->errors[0]);
  EXPECT_EQ(all->errors[2]->code, ErrorCode::kCancelled);
  EXPECT_EQ(all->errors[2]->message, "It was not begun, for row 2 before it failed.");
  ASSERT_EQ(all->failed_row(), 1u);
  EXPECT_EQ(all->failure().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(all->failure().message, "Row 2 of 3: There is no more.");
}

TEST(RowsMade, where_nothing_was_said_the_first_failure_is_all_there_is) {
  RowsMade made(2);
  made.fail(1, {ErrorCode::kQueueFull, "It would wait."});
  made.fail(0, not_begun("the first would have begun too late"));
  const Result<Generated> all = std::move(made).take();
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.error().message, "It would wait.");
}

TEST(RowsMade, a_row_that_begins_again_is_heard_once) {
  RowsMade made(1);
  EXPECT_TRUE(made.hear({1, 0, 0, 7}));
  EXPECT_FALSE(made.hear({2, 0, 0, 7}));
  EXPECT_TRUE(made.hear({2, 1, 0, 8}));
  const Result<Generated> all = std::move(made).take();
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->tokens, (Prompts{{7, 8}}));
  EXPECT_FALSE(all->failed_row());
}

}  // namespace
}  // namespace djinn::client
