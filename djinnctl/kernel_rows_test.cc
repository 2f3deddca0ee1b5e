// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/kernel_rows.h"

#include <gtest/gtest.h>

namespace djinn::ctl {
namespace {

ipc::DeviceReport device_with(const KernelTable& table) {
  ipc::DeviceReport device;
  device.device = "cpu:0";
  device.kernels = table;
  return device;
}

TEST(KernelRows, a_table_says_who_was_how_fast) {
  KernelTable measured{21'040, {20'000, 19'000, 0}, {}};
  measured.products[product_index(0, true)] = {98'000, 71'500};
  measured.products[product_index(1, false)] = {80'000, 190'000};
  const ipc::DeviceReport device = device_with(measured);
  EXPECT_EQ(kernel_rows_table(kernel_rows({&device, 1})).text(),
            "DEVICE  DTYPE     WEIGHTS  ROWS           OWN        LIBRARY     MEMORY\n"
            "cpu:0   float32   [N, K]   few      20.0 GB/s              -  21.0 GB/s\n"
            "cpu:0   float32   [N, K]   many  98.0 GFLOP/s   71.5 GFLOP/s          -\n"
            "cpu:0   float32   [K, N]   many             -              -          -\n"
            "cpu:0   bfloat16  [N, K]   few      19.0 GB/s              -  21.0 GB/s\n"
            "cpu:0   bfloat16  [N, K]   many             -              -          -\n"
            "cpu:0   bfloat16  [K, N]   many  80.0 GFLOP/s  190.0 GFLOP/s          -\n"
            "cpu:0   float16   [N, K]   few              -              -  21.0 GB/s\n"
            "cpu:0   float16   [N, K]   many             -              -          -\n"
            "cpu:0   float16   [K, N]   many             -              -          -\n");
}

TEST(KernelRows, json_has_rates_in_units_and_null_for_what_was_not_measured) {
  KernelTable table;
  table.read_mbs = 5000;
  table.products[product_index(0, true)] = {4'000'000'000, 1};
  const ipc::DeviceReport device = device_with(table);
  const auto rows = kernel_rows({&device, 1});
  EXPECT_EQ(to_json(rows.at(0)).dump(),
            "{\"device\":\"cpu:0\",\"dtype\":\"float32\",\"weights\":\"[N, K]\",\"rows\":\"few\","
            "\"own_flops_per_second\":null,\"library_flops_per_second\":null,"
            "\"own_bytes_per_second\":null,\"read_bytes_per_second\":5000000000}");
  EXPECT_EQ(to_json(rows.at(1))["own_flops_per_second"], 4'000'000'000'000'000u);
  EXPECT_EQ(to_json(rows.at(1))["rows"], "many");
}

TEST(KernelRows, a_device_whose_workers_have_no_table_has_no_rows) {
  const ipc::DeviceReport device;
  EXPECT_TRUE(kernel_rows({&device, 1}).empty());
}

}  // namespace
}  // namespace djinn::ctl
