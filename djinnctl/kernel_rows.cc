// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/kernel_rows.h"

#include <fmt/format.h>

namespace djinn::ctl {
namespace {

constexpr uint64_t kMillion = 1'000'000;

const char* rows_text(const KernelRow& row) {
  return row.has_many_rows ? "many" : "few";
}

std::string giga_text(uint32_t millions, const char* unit) {
  return millions == 0 ? "" : fmt::format("{:.1f} {}", millions / 1000.0, unit);
}

// What was measured is a rate of operations, or of bytes.
std::string own_text(const KernelRow& row) {
  return row.has_many_rows ? giga_text(row.own_mflops, "GFLOP/s") : giga_text(row.own_mbs, "GB/s");
}

Json rate(uint32_t millions) {
  return millions == 0 ? Json() : Json(millions * kMillion);
}

}  // namespace

std::vector<KernelRow> kernel_rows(std::span<const ipc::DeviceReport> devices) {
  std::vector<KernelRow> rows;
  for (const ipc::DeviceReport& device : devices) {
    if (!device.kernels) continue;
    const KernelTable& table = *device.kernels;
    for (size_t dtype = 0; dtype < kKernelDtypes; ++dtype) {
      rows.push_back({device.device, kKernelDtypeNames[dtype], kWeightLayoutNames[0], false, 0, 0,
                      table.row_mbs[dtype], table.read_mbs});
      for (const bool inputs_dense : {true, false}) {
        const ProductKernels& product = table.products[product_index(dtype, inputs_dense)];
        rows.push_back({device.device, kKernelDtypeNames[dtype],
                        kWeightLayoutNames[inputs_dense ? 0 : 1], true, product.own_mflops,
                        product.library_mflops, 0, 0});
      }
    }
  }
  return rows;
}

Table kernel_rows_table(std::span<const KernelRow> rows) {
  constexpr auto kRight = Table::Align::kRight;
  constexpr auto kLeftOutLast = Table::Fit::kLeftOutLast;
  Table table({{"DEVICE"},
               {"DTYPE"},
               {"WEIGHTS"},
               {"ROWS"},
               {"OWN", kRight},
               {"LIBRARY", kRight, kLeftOutLast},
               {"MEMORY", kRight, kLeftOutLast}});
  for (const KernelRow& row : rows) {
    table.add({row.device, std::string(row.dtype), std::string(row.weights), rows_text(row),
               own_text(row), giga_text(row.library_mflops, "GFLOP/s"),
               giga_text(row.read_mbs, "GB/s")});
  }
  return table;
}

Json to_json(const KernelRow& row) {
  return {{"device", row.device},
          {"dtype", row.dtype},
          {"weights", row.weights},
          {"rows", rows_text(row)},
          {"own_flops_per_second", rate(row.own_mflops)},
          {"library_flops_per_second", rate(row.library_mflops)},
          {"own_bytes_per_second", rate(row.own_mbs)},
          {"read_bytes_per_second", rate(row.read_mbs)}};
}

}  // namespace djinn::ctl
