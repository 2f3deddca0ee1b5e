// SPDX-License-Identifier: Apache-2.0

// DType: the element types that cross our borders. Numbers are part of the wire protocol.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace djinn {

enum class DType : uint8_t {
  kInvalid = 0,
  kBool = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kInt16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kFloat16 = 7,
  kBFloat16 = 8,
  kFloat32 = 9,
  kFloat64 = 10,
  kUInt16 = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kFloat8E4M3 = 14,
  kFloat8E5M2 = 15,
  kComplex64 = 16,
  kComplex128 = 17,
};

// Bytes of one element; 0 for kInvalid and for numbers that name no dtype.
[[nodiscard]] uint32_t size_of(DType dtype) noexcept;
// PyTorch's spelling: "float32", "bfloat16", "bool"; "invalid" otherwise.
[[nodiscard]] std::string_view name_of(DType dtype) noexcept;
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name) noexcept;

}  // namespace djinn
