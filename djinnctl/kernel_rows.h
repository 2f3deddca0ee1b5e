// SPDX-License-Identifier: Apache-2.0

// KernelRow: a line of djinnctl devices --kernels: what one kind of product gives on a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "djinnctl/json.h"
#include "djinnctl/table.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

struct KernelRow {
  std::string device;
  std::string_view dtype;
  std::string_view weights;  // how they lie
  bool has_many_rows = false;
  // As in KernelTable; 0: not measured, or nothing to measure.
  uint32_t own_mflops = 0;
  uint32_t library_mflops = 0;
  uint32_t own_mbs = 0;
  uint32_t read_mbs = 0;
};

// None of a device whose workers have no kernels of ours, or none of which is warm yet.
[[nodiscard]] std::vector<KernelRow> kernel_rows(std::span<const ipc::DeviceReport> devices);
[[nodiscard]] Table kernel_rows_table(std::span<const KernelRow> rows);
[[nodiscard]] Json to_json(const KernelRow& row);

}  // namespace djinn::ctl
