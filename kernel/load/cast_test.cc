// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/cast.h"

#include <gmock/gmock.h>
#include <string.h>

#include <cmath>
#include <limits>
#include <vector>

namespace djinn::load {
namespace {

using ::testing::ElementsAreArray;

// Bits in, bits out. What a row expects is what PyTorch 2.11's `to` gave on x86-64.
template <typename To, typename From>
std::vector<To> cast(DType from, DType to, const std::vector<From>& in) {
  std::vector<To> out(in.size());
  const auto copy = element_copy(from, to);
  EXPECT_TRUE(copy.ok());
  (*copy)(reinterpret_cast<const std::byte*>(in.data()), sizeof(From),
          reinterpret_cast<std::byte*>(out.data()), sizeof(To), in.size());
  return out;
}

using U8 = std::vector<uint8_t>;
using U16 = std::vector<uint16_t>;
using U32 = std::vector<uint32_t>;
using U64 = std::vector<uint64_t>;

TEST(Cast, float32_to_bfloat16_rounds_to_nearest_even) {
  const U32 in{0x00000000, 0x80000000, 0x3f800000, 0x3f808000, 0x3f818000, 0x3f807fff,
               0x3f808001, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001,
               0xff812345, 0x00000001, 0x00008000, 0x00018000, 0x807fffff};
  const U16 out{0x0000, 0x8000, 0x3f80, 0x3f80, 0x3f82, 0x3f80, 0x3f81, 0x7f80, 0x7f80,
                0xff80, 0xffff, 0xffff, 0xffff, 0x0000, 0x0000, 0x0002, 0x8080};
  EXPECT_THAT((cast<uint16_t>(DType::kFloat32, DType::kBFloat16, in)), ElementsAreArray(out));
}

TEST(Cast, float32_to_float16_rounds_to_nearest_even) {
  const U32 in{0x00000000, 0x80000000, 0x3f800000, 0x3f801000, 0x3f803000, 0x477fefff, 0x477ff000,
               0x7f800000, 0xff800000, 0x33000000, 0x33000001, 0x33800000, 0x387fc000, 0x387fe000,
               0x7fc00000, 0x7f800001, 0xffc12345, 0x7fffffff, 0x7f812345};
  const U16 out{0x0000, 0x8000, 0x3c00, 0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x7c00, 0xfc00, 0x0000,
                0x0001, 0x0001, 0x03ff, 0x0400, 0x7e00, 0x7e00, 0xfe09, 0x7fff, 0x7e09};
  EXPECT_THAT((cast<uint16_t>(DType::kFloat32, DType::kFloat16, in)), ElementsAreArray(out));
}

TEST(Cast, float16_to_float32_is_exact) {
  const U16 in{0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0x7bff, 0x7c00, 0xfc00, 0x7e01};
  const U32 out{0x00000000, 0x80000000, 0x33800000, 0x387fc000, 0x38800000,
                0x3f800000, 0x477fe000, 0x7f800000, 0xff800000, 0x7fc02000};
  EXPECT_THAT((cast<uint32_t>(DType::kFloat16, DType::kFloat32, in)), ElementsAreArray(out));
}

TEST(Cast, every_float16_survives_a_trip_through_float32_and_float64) {
  U16 all(65536);
  for (uint32_t i = 0; i < all.size(); ++i) {
    const bool signalling = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0 && (i & 0x200) == 0;
    all[i] = static_cast<uint16_t>(signalling ? i | 0x200 : i);
  }
  const auto wide = cast<uint32_t>(DType::kFloat16, DType::kFloat32, all);
  EXPECT_EQ((cast<uint16_t>(DType::kFloat32, DType::kFloat16, wide)), all);
  const auto wider = cast<uint64_t>(DType::kFloat16, DType::kFloat64, all);
  EXPECT_EQ((cast<uint16_t>(DType::kFloat64, DType::kFloat16, wider)), all);
}

TEST(Cast, float64_reaches_float16_through_float32) {
  // 1 + 2^-11 + 2^-40 lies above a tie of float16; float32 drops its tail, and the tie goes to
  // even.
  const std::vector<double> in{1.0 + 0x1p-11 + 0x1p-40, 1.0 + 0x1p-11 + 0x1p-20};
  EXPECT_THAT((cast<uint16_t>(DType::kFloat64, DType::kFloat16, in)),
              ElementsAreArray(U16{0x3c00, 0x3c01}));
}

TEST(Cast, float32_to_float8_rounds_and_overflows_as_each_format_says) {
  const std::vector<float> in{0.0f,   -1.0f, 448.0f,   464.0f,   464.1f,
                              480.0f, 1e-9f, 0x1p-10f, 0x3p-10f, 0x1p-9f};
  EXPECT_THAT((cast<uint8_t>(DType::kFloat32, DType::kFloat8E4M3, in)),
              ElementsAreArray(U8{0x00, 0xb8, 0x7e, 0x7e, 0x7f, 0x7f, 0x00, 0x00, 0x02, 0x01}));
  const std::vector<float> wide{57344.0f, 61439.0f, 61440.0f, -1e9f, 0x1p-17f, 0x1p-16f};
  EXPECT_THAT((cast<uint8_t>(DType::kFloat32, DType::kFloat8E5M2, wide)),
              ElementsAreArray(U8{0x7b, 0x7b, 0x7c, 0xfc, 0x00, 0x01}));
  const U32 nan{0x7fc00000, 0xffc00000};
  EXPECT_THAT((cast<uint8_t>(DType::kFloat32, DType::kFloat8E4M3, nan)),
              ElementsAreArray(U8{0x7f, 0xff}));
  EXPECT_THAT((cast<uint8_t>(DType::kFloat32, DType::kFloat8E5M2, nan)),
              ElementsAreArray(U8{0x7f, 0xff}));
}

TEST(Cast, nan_of_a_small_float_becomes_bfloat16s_quiet_nan) {
  EXPECT_THAT((cast<uint16_t>(DType::kFloat16, DType::kBFloat16, U16{0x7e00, 0xfc01})),
              ElementsAreArray(U16{0x7fc0, 0x7fc0}));
}

TEST(Cast, integers_wrap_and_floats_truncate) {
  EXPECT_THAT((cast<int8_t>(DType::kInt32, DType::kInt8, std::vector<int32_t>{127, 128, -129})),
              ElementsAreArray(std::vector<int8_t>{127, -128, 127}));
  EXPECT_THAT(
      (cast<uint8_t>(DType::kFloat32, DType::kUInt8, std::vector<float>{-1.9f, 255.9f, 256})),
      ElementsAreArray(U8{255, 255, 0}));
  EXPECT_THAT((cast<uint64_t>(DType::kFloat64, DType::kUInt64,
                              std::vector<double>{0x1p63, 0x1p64 - 2048, -1})),
              ElementsAreArray(U64{1ull << 63, ~0ull - 2047, ~0ull}));
}

TEST(Cast, a_float_that_fits_no_integer_gives_the_indefinite_one) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> in{infinity, -infinity, std::nanf(""), 3e9f};
  const int32_t low = std::numeric_limits<int32_t>::min();
  EXPECT_THAT((cast<int32_t>(DType::kFloat32, DType::kInt32, in)),
              ElementsAreArray(std::vector<int32_t>{low, low, low, low}));
}

TEST(Cast, anything_but_zero_is_true) {
  const std::vector<float> in{0.0f, -0.0f, 1e-45f, std::nanf("")};
  EXPECT_THAT((cast<uint8_t>(DType::kFloat32, DType::kBool, in)), ElementsAreArray(U8{0, 0, 1, 1}));
  EXPECT_THAT((cast<float>(DType::kBool, DType::kFloat32, U8{0, 1, 7})),
              ElementsAreArray(std::vector<float>{0, 1, 1}));
}

TEST(Cast, equal_dtypes_keep_every_bit) {
  const U32 signalling{0x7f800001, 0xff812345};
  EXPECT_EQ((cast<uint32_t>(DType::kFloat32, DType::kFloat32, signalling)), signalling);
}

TEST(Cast, a_strided_copy_leaves_the_gaps_alone) {
  const U16 in{1, 2, 3, 4, 5, 6};
  U32 out(6, 99);
  const auto copy = element_copy(DType::kUInt16, DType::kUInt32);
  ASSERT_TRUE(copy);
  (*copy)(reinterpret_cast<const std::byte*>(in.data()), 4,
          reinterpret_cast<std::byte*>(out.data()), 8, 3);
  EXPECT_THAT(out, ElementsAreArray(U32{1, 99, 3, 99, 5, 99}));
}

TEST(Cast, every_pair_of_real_dtypes_is_offered_and_complex_ones_are_not) {
  for (uint8_t from = 1; from <= 16; ++from) {
    for (uint8_t to = 1; to <= 16; ++to) {
      const auto copy = element_copy(static_cast<DType>(from), static_cast<DType>(to));
      EXPECT_EQ(copy.ok(), from == to || (from < 16 && to < 16));
      if (!copy) {
        EXPECT_EQ(copy.error().code, ErrorCode::kUnsupported);
      }
    }
  }
  EXPECT_EQ(element_copy(DType::kInvalid, DType::kInvalid).error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace djinn::load
