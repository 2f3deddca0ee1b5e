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
    table.products[i] = {own, library, takes_own(own, library, false)};
  }
  return table;
}

TEST(KernelTable, a_table_is_read_as_it_was_written) {
  const KernelTable standard = standard_kernels(IsaLevel::kBase, false);
  for (const KernelTable& table : {some_table(), standard}) {
    const auto read = kernel_table_of(text_of(table), standard);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(*read, table);
  }
}

TEST(KernelTable, what_is_no_table_is_refused) {
  const KernelTable standard = standard_kernels(IsaLevel::kBase, false);
  const std::string whole = text_of(some_table());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(kernel_table_of(whole.substr(0, bytes), standard).ok()) << bytes;
  }
  for (const std::string& text :
       {whole + " ", whole + " 1", whole + "\n", "x" + whole, "-" + whole, "99999999999" + whole,
        "0" + whole, std::string(whole.size(), '\0')}) {
    EXPECT_FALSE(kernel_table_of(text, standard).ok()) << text;
  }
}

TEST(KernelTable, a_choice_that_the_rates_do_not_bear_out_is_refused) {
  const KernelTable standard = standard_kernels(IsaLevel::kBase, false);
  for (size_t i = 0; i < kKernelProducts; ++i) {
    KernelTable lie = some_table();
    lie.products.at(i).takes_own = !lie.products.at(i).takes_own;
    EXPECT_FALSE(kernel_table_of(text_of(lie), standard).ok()) << i;
  }
}

TEST(KernelTable, the_standard_holds_unless_the_other_is_a_quarter_faster) {
  for (const bool standard : {false, true}) {
    EXPECT_EQ(takes_own(0, 0, standard), standard);
    EXPECT_EQ(takes_own(1000, 0, standard), standard);
    EXPECT_EQ(takes_own(0, 1000, standard), standard);
    EXPECT_EQ(takes_own(1240, 1000, standard), standard);
    EXPECT_EQ(takes_own(1000, 1240, standard), standard);
    EXPECT_TRUE(takes_own(1250, 1000, standard));
    EXPECT_FALSE(takes_own(1000, 1250, standard));
    EXPECT_TRUE(takes_own(UINT32_MAX, 1, standard));
  }
}

TEST(KernelTable, by_standard_float32_is_ours_where_mkl_is_not_at_its_best) {
  const auto owns = [](IsaLevel level, bool amd) {
    return standard_kernels(level, amd).products[product_index(0, true)].takes_own;
  };
  EXPECT_TRUE(owns(IsaLevel::kAvx512Bf16, true));
  EXPECT_TRUE(owns(IsaLevel::kAvx512, true));
  EXPECT_TRUE(owns(IsaLevel::kAvx2, true));
  EXPECT_FALSE(owns(IsaLevel::kBase, true));
  EXPECT_FALSE(owns(IsaLevel::kAvx2, false));
  EXPECT_FALSE(owns(IsaLevel::kAvx512, false));
  EXPECT_FALSE(owns(IsaLevel::kAvx512Bf16, false));
  EXPECT_TRUE(owns(IsaLevel::kAmx, false));
  EXPECT_FALSE(standard_kernels(IsaLevel::kAmx, false).products[product_index(0, false)].takes_own);
}

TEST(KernelTable, by_standard_sixteen_bits_are_ours_where_pytorch_has_nothing_fast_for_them) {
  for (const bool amd : {false, true}) {
    for (const size_t dtype : {1, 2}) {
      const size_t index = product_index(dtype, true);
      EXPECT_TRUE(standard_kernels(IsaLevel::kAvx2, amd).products[index].takes_own);
      EXPECT_FALSE(standard_kernels(IsaLevel::kAvx512Bf16, amd).products[index].takes_own);
      EXPECT_FALSE(standard_kernels(IsaLevel::kAmx, amd).products[index].takes_own);
    }
  }
}

}  // namespace
}  // namespace djinn
