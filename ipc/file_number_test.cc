// SPDX-License-Identifier: Apache-2.0

#include "ipc/file_number.h"

#include <gtest/gtest.h>

namespace djinn::ipc {
namespace {

TEST(FileNumber, what_was_put_before_a_message_is_found_again) {
  const std::string text = with_file_number(1, 3, "It is empty.");
  EXPECT_EQ(text, "File 2 of 3: It is empty.");
  const auto found = file_message(text, 3);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, 1u);
  EXPECT_EQ(found->message, "It is empty.");
}

TEST(FileNumber, other_texts_and_other_counts_name_no_file) {
  for (const char* const text :
       {"", "File", "File 0 of 3: x", "File 4 of 3: x", "File 2 of 30: x", "File -1 of 3: x",
        "File 2 of 3", "file 2 of 3: x", "File 99999999999999999999 of 3: x"}) {
    EXPECT_FALSE(file_message(text, 3)) << text;
  }
}

}  // namespace
}  // namespace djinn::ipc
