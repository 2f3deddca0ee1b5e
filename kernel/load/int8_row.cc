// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/int8_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernel/base/half.h"
#include "kernel/base/int8_rows.h"
#include "kernel/load/cast.h"

namespace djinn::load {
namespace {

constexpr uint64_t kAtOnce = 512;  // elements, in buffers on the stack
static_assert(kAtOnce % kInt8Block == 0);
constexpr uint32_t kInfinity = 0x7f80'0000u;
constexpr BFloat16 kNotANumber{0x7fc0};

using Floats = std::array<float, kAtOnce>;

// Widens elements, once they are cast.
class Reader {
 public:
  Reader(DType from, DType dtype)
      : cast_(*element_copy(from, dtype)),
        widen_(*element_copy(dtype, DType::kFloat32)),
        from_bytes_(size_of(from)),
        dtype_bytes_(size_of(dtype)) {}

  [[nodiscard]] uint64_t element_bytes() const { return from_bytes_; }

  void read(const std::byte* source, uint64_t count, Floats& out) const {
    std::array<std::byte, kAtOnce * sizeof(float)> made;
    cast_(source, from_bytes_, made.data(), dtype_bytes_, count);
    widen_(made.data(), dtype_bytes_, reinterpret_cast<std::byte*>(out.data()), sizeof(float),
           count);
  }

 private:
  ElementCopy cast_;
  ElementCopy widen_;
  uint64_t from_bytes_;
  uint64_t dtype_bytes_;
};

BFloat16 rounded_up(float positive) {
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(positive) + 0xffffu) >> 16)};
}

BFloat16 scale_of(const float* values) {
  uint32_t most = 0;  // bits order magnitudes as their numbers
  for (int i = 0; i < kInt8Block; ++i) {
    most = std::max(most, std::bit_cast<uint32_t>(values[i]) & ~0x8000'0000u);
  }
  if (most >= kInfinity) return kNotANumber;
  return rounded_up(std::bit_cast<float>(most) / kInt8Most);
}

// To the nearest integer, ties to even: adding this leaves an integer in the low bits.
float nearest(float value) {
  constexpr float kRounder = 0x1.8p+23f;
  return (value + kRounder) - kRounder;
}

BFloat16 make_block(const float* values, std::byte* target) {
  const BFloat16 scale = scale_of(values);
  const float factor = as_float(scale);
  if (!(factor > 0)) return scale;  // all zeros, or not all finite: the target has zeros
  std::array<int8_t, kInt8Block> block;
  for (int i = 0; i < kInt8Block; ++i) {
    block[static_cast<size_t>(i)] = static_cast<int8_t>(nearest(values[i] / factor));
  }
  std::memcpy(target, block.data(), block.size());
  return scale;
}

}  // namespace

void make_int8_row(const std::byte* source, DType from, DType dtype, uint64_t columns,
                   std::byte* target) {
  const Reader reader(from, dtype);
  std::memset(target, 0, int8_row_bytes(columns));
  std::byte* scales = target + int8_scales_offset(columns);
  for (uint64_t done = 0; done < columns; done += kAtOnce) {
    const uint64_t count = std::min(kAtOnce, columns - done);
    Floats values;
    reader.read(source + done * reader.element_bytes(), count, values);
    std::fill(values.begin() + static_cast<ptrdiff_t>(count), values.end(), 0.0f);
    for (uint64_t at = 0; at < count; at += kInt8Block) {
      const BFloat16 scale = make_block(values.data() + at, target + done + at);
      std::memcpy(scales, &scale, sizeof scale);
      scales += sizeof scale;
    }
  }
}

}  // namespace djinn::load
