// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/dtype.h"

#include <array>

namespace djinn {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  uint32_t bytes;
};

constexpr std::array<Row, 18> kTable{{
    {DType::kInvalid, "invalid", 0},
    {DType::kBool, "bool", 1},
    {DType::kUInt8, "uint8", 1},
    {DType::kInt8, "int8", 1},
    {DType::kInt16, "int16", 2},
    {DType::kInt32, "int32", 4},
    {DType::kInt64, "int64", 8},
    {DType::kFloat16, "float16", 2},
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kFloat32, "float32", 4},
    {DType::kFloat64, "float64", 8},
    {DType::kUInt16, "uint16", 2},
    {DType::kUInt32, "uint32", 4},
    {DType::kUInt64, "uint64", 8},
    {DType::kFloat8E4M3, "float8_e4m3fn", 1},
    {DType::kFloat8E5M2, "float8_e5m2", 1},
    {DType::kComplex64, "complex64", 8},
    {DType::kComplex128, "complex128", 16},
}};

const Row& row_of(DType dtype) noexcept {
  const auto number = static_cast<size_t>(dtype);
  return number < kTable.size() ? kTable[number] : kTable[0];
}

}  // namespace

uint32_t size_of(DType dtype) noexcept {
  return row_of(dtype).bytes;
}
std::string_view name_of(DType dtype) noexcept {
  return row_of(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const Row& row : kTable) {
    if (row.bytes != 0 && row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace djinn
