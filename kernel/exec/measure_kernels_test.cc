// SPDX-License-Identifier: Apache-2.0

// What a host measures of its kernels. Who was faster is nobody's business here.
#include <gtest/gtest.h>

#include "kernel/base/kernel_table.h"
#include "kernel/exec/cpu_executor.h"

namespace djinn::exec {
namespace {

TEST(MeasuredKernels, are_a_table_that_djinnd_takes) {
  CpuExecutor executor;
  const KernelTable before = executor.kernels().value();
  executor.measure_kernels(2);
  const KernelTable measured = executor.kernels().value();
  executor.take_kernels(before);
  const auto read = kernel_table_of(text_of(measured));
  ASSERT_TRUE(read.ok()) << text_of(measured);
  EXPECT_EQ(*read, measured);
  EXPECT_GT(measured.products[0].own_mflops, 0u);  // the first has time, however busy the host is
  EXPECT_GT(measured.products[0].library_mflops, 0u);
}

}  // namespace
}  // namespace djinn::exec
