// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/kernel_table.h"

#include <gtest/gtest.h>

#include <string>

namespace djinn {
namespace {

KernelTable some_table() {
  KernelTable table{21'000, {20'000, 19'000, 18'000}, {}};
  for (uint32_t i = 0; i < kKernelProducts; ++i) {
    const uint32_t own = 1000 * (i + 1), library = 4000;
    table.products[i] = {own, library};
  }
  return table;
}

TEST(KernelTable, a_table_is_read_as_it_was_written) {
  for (const KernelTable& table : {some_table(), KernelTable()}) {
    const auto read = kernel_table_of(text_of(table));
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(*read, table);
  }
}

TEST(KernelTable, what_is_no_table_is_refused) {
  const std::string whole = text_of(some_table());
  for (size_t bytes = 0; bytes <= whole.rfind('/') + 1; ++bytes) {
    EXPECT_FALSE(kernel_table_of(whole.substr(0, bytes)).ok()) << bytes;
  }
  for (const std::string& text :
       {whole + " ", whole + " 1", whole + "\n", "x" + whole, "-" + whole, "99999999999" + whole,
        "0" + whole, std::string(whole.size(), '\0')}) {
    EXPECT_FALSE(kernel_table_of(text).ok()) << text;
  }
}

}  // namespace
}  // namespace djinn
