// SPDX-License-Identifier: Apache-2.0

// Weights that a loader makes int8, against what int8_rows.h and int8_row.h say of them.
#include "kernel/load/int8_row.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernel/base/half.h"
#include "kernel/base/int8_rows.h"
#include "kernel/load/cast.h"
#include "kernel/load/testing.h"

namespace djinn::load {
namespace {

using srg::Destination;
using srg::LoadPlan;
using srg::WeightForm;
using testing::code_of;
using ::testing::HasSubstr;

std::vector<float> noise(uint64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> out;
  while (out.size() < count) {
    const double uniform = static_cast<double>(random.below(2'000'001)) / 1e6 - 1;
    out.push_back(static_cast<float>(uniform * uniform * uniform * 3));
  }
  return out;
}

std::string cast_bytes(const std::vector<float>& values, DType dtype) {
  std::string out(values.size() * size_of(dtype), '\0');
  (*element_copy(DType::kFloat32, dtype))(reinterpret_cast<const std::byte*>(values.data()), 4,
                                          reinterpret_cast<std::byte*>(out.data()), size_of(dtype),
                                          values.size());
  return out;
}

std::vector<float> widened(const std::string& bytes, DType dtype) {
  std::vector<float> out(bytes.size() / size_of(dtype));
  (*element_copy(dtype, DType::kFloat32))(reinterpret_cast<const std::byte*>(bytes.data()),
                                          size_of(dtype), reinterpret_cast<std::byte*>(out.data()),
                                          4, out.size());
  return out;
}

// A row as int8_rows.h says it.
struct Row {
  Row(const std::vector<float>& values)
      : columns(values.size()), bytes(int8_row_bytes(columns), std::byte{0xee}) {
    make_int8_row(reinterpret_cast<const std::byte*>(values.data()), DType::kFloat32,
                  DType::kFloat32, columns, bytes.data());
  }
  [[nodiscard]] int value(uint64_t column) const { return static_cast<int8_t>(bytes[column]); }
  [[nodiscard]] float scale(uint64_t column) const {
    BFloat16 found;
    std::memcpy(&found, bytes.data() + int8_scales_offset(columns) + column / kInt8Block * 2, 2);
    return as_float(found);
  }

  uint64_t columns;
  std::vector<std::byte> bytes;
};

TEST(Int8Row, each_block_has_the_least_scale_and_the_nearest_values) {
  for (const uint64_t columns : {1, 31, 32, 33, 64, 900, 5000}) {
    const std::vector<float> values = noise(columns, columns);
    const Row row(values);
    for (uint64_t begin = 0; begin < columns; begin += kInt8Block) {
      double most = 0;
      for (uint64_t c = begin; c < std::min(columns, begin + kInt8Block); ++c) {
        most = std::max(most, std::abs(double(values[c])));
      }
      const float scale = row.scale(begin);
      const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) - 0x10000u);
      EXPECT_GE(scale * (127 + 1e-4), most);
      EXPECT_LT(below * 127.0, most) << "a lesser scale would do";
      for (uint64_t c = begin; c < std::min(columns, begin + kInt8Block); ++c) {
        ASSERT_LE(std::abs(row.value(c) * double(scale) - values[c]), scale * 0.50001) << c;
      }
    }
  }
}

TEST(Int8Row, what_is_behind_the_last_column_is_zero) {
  const Row row(noise(70, 1));
  std::vector<std::byte> made(row.bytes);
  std::memset(made.data(), 0, 70);
  std::memset(made.data() + int8_scales_offset(uint64_t{70}), 0, 3 * 2);
  EXPECT_THAT(made, ::testing::Each(std::byte{0}));
}

TEST(Int8Row, extremes_neither_overflow_nor_spoil_other_blocks) {
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<float> values(5 * kInt8Block, 0.0f);
  values[0] = kMost;
  values[1] = -kMost;
  values[kInt8Block + 3] = std::numeric_limits<float>::infinity();
  values[2 * kInt8Block + 3] = std::numeric_limits<float>::quiet_NaN();
  values[3 * kInt8Block] = std::numeric_limits<float>::denorm_min();
  const Row row(values);
  EXPECT_EQ(row.value(0), -row.value(1));
  EXPECT_GE(row.value(0), 126);
  EXPECT_TRUE(std::isnan(row.scale(kInt8Block)));
  EXPECT_TRUE(std::isnan(row.scale(2 * kInt8Block)));
  EXPECT_TRUE(std::isfinite(row.scale(3 * kInt8Block)));
  EXPECT_EQ(row.scale(4 * kInt8Block), 0.0f);
}

// --- loads --------------------------------------------------------------------------------------

struct Loaded {
  Result<ReadPlan> plan;
  std::string bytes;  // of the tensor "w"
};

class Int8Load : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr uint64_t kRows = 700, kColumns = 1000;

  Int8Load() : values_(noise(kRows * kColumns, 9)) {
    static constexpr std::pair<DType, const char*> kNames[] = {
        {DType::kFloat32, "F32"}, {DType::kBFloat16, "BF16"}, {DType::kFloat16, "F16"}};
    const char* name = nullptr;
    for (const auto& [dtype, text] : kNames) {
      if (dtype == GetParam()) name = text;
    }
    testing::FileBuilder builder;
    builder.add("odd", "U8", {3}, "abc");  // the matrix then lies at an odd place
    builder.add("w.weight", name, {kRows, kColumns}, cast_bytes(values_, GetParam()));
    builder.add("norm.weight", name, {kColumns},
                cast_bytes({values_.begin(), values_.begin() + kColumns}, GetParam()));
    fd_ = testing::temporary_file(builder.finish());
    file_ = {&fd_, *identify(fd_, clock_)};
    index_ = *read_index(file_, 1 << 20);
  }

  std::string load(const LoadPlan& plan, std::string_view name) {
    const auto resolved = resolve(plan, std::span(&index_, 1));
    EXPECT_TRUE(resolved) << resolved.error().message;
    const testing::Extents extents(resolved->manifest);
    const auto stats =
        execute(*resolved, std::span(&file_, 1), extents.targets, {&clock_, true, {}});
    EXPECT_TRUE(stats) << stats.error().message;
    std::vector<std::span<const std::byte>> resident;
    for (const ExtentTarget& target : extents.targets) resident.emplace_back(target.mapped);
    const auto same = compare(*resolved, std::span(&file_, 1), resident, {&clock_, true, {}}, 5);
    EXPECT_TRUE(same && *same) << "what was loaded is not what the files give";
    for (const srg::TensorEntry& entry : resolved->manifest.tensors) {
      if (entry.name != name) continue;
      // One value of one row is other than the file gives.
      extents.mappings[entry.extent].data()[entry.offset + entry.bytes / 2] ^= std::byte{1};
      const auto other = compare(*resolved, std::span(&file_, 1), resident, {&clock_, true, {}}, 5);
      EXPECT_TRUE(other && !*other);
      extents.mappings[entry.extent].data()[entry.offset + entry.bytes / 2] ^= std::byte{1};
      return extents.bytes(entry);
    }
    return {};
  }

  // Rows [begin, end) of the file's matrix, cast.
  std::string expected(uint64_t begin, uint64_t end, DType dtype) const {
    const std::vector<float> in_file = widened(cast_bytes(values_, GetParam()), GetParam());
    const std::vector<float> cast = widened(cast_bytes(in_file, dtype), dtype);
    std::string bytes;
    for (uint64_t row = begin; row < end; ++row) {
      const auto first = cast.begin() + static_cast<ptrdiff_t>(row * kColumns);
      const Row made(std::vector<float>(first, first + kColumns));
      bytes.append(reinterpret_cast<const char*>(made.bytes.data()), made.bytes.size());
    }
    return bytes;
  }

  static Destination int8(DType dtype, uint64_t rows, std::vector<srg::Piece> pieces) {
    return {"w", dtype, {rows, kColumns}, 0, std::move(pieces), WeightForm::kInt8};
  }

  std::vector<float> values_;
  SystemClock clock_;
  Fd fd_;
  SourceFile file_;
  SafetensorsIndex index_;
};

TEST_P(Int8Load, rows_are_those_of_the_matrix_as_it_is_cast) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const LoadPlan plan{{int8(dtype, kRows, {{0, "w.weight", {}, false}})}, {}};
    EXPECT_EQ(load(plan, "w"), expected(0, kRows, dtype));
  }
}

TEST_P(Int8Load, rows_of_several_pieces_follow_each_other) {
  const srg::Piece last{0, "w.weight", {{0, 500, 200}}, false};
  const srg::Piece one{0, "w.weight", {{0, 3, 1}}, false};
  const LoadPlan plan{{int8(GetParam(), 201, {last, one})}, {}};
  EXPECT_EQ(load(plan, "w"), expected(500, 700, GetParam()) + expected(3, 4, GetParam()));
}

TEST_P(Int8Load, a_plan_without_destinations_makes_matrices_int8_and_leaves_the_rest) {
  LoadPlan plan;
  plan.matrices = WeightForm::kInt8;
  EXPECT_EQ(load(plan, "w.weight"), expected(0, kRows, GetParam()));
  const auto resolved = resolve(plan, std::span(&index_, 1));
  for (const srg::TensorEntry& entry : resolved->manifest.tensors) {
    const bool is_matrix = entry.name == "w.weight";
    EXPECT_EQ(entry.form, is_matrix ? WeightForm::kInt8 : WeightForm::kPlain) << entry.name;
    EXPECT_EQ(entry.bytes == kRows * int8_row_bytes(kColumns), is_matrix);
    if (is_matrix) {
      EXPECT_EQ(entry.dtype, GetParam());
    }
  }
  EXPECT_NE(*resolve({}, std::span(&index_, 1))->manifest.extent_bytes.begin(),
            *resolved->manifest.extent_bytes.begin());
}

TEST_P(Int8Load, a_form_of_all_matrices_beside_destinations_is_refused) {
  LoadPlan plan{{int8(GetParam(), kRows, {{0, "w.weight", {}, false}})}, {}};
  plan.matrices = WeightForm::kInt8;
  const auto resolved = resolve(plan, std::span(&index_, 1));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(resolved.error().message, HasSubstr("Give the form to the destinations"));
}

TEST_P(Int8Load, what_is_no_matrix_of_dense_rows_is_refused_with_the_reason) {
  const auto message = [&](Destination destination) {
    const auto resolved = resolve({{std::move(destination)}, {}}, std::span(&index_, 1));
    EXPECT_EQ(code_of(resolved), ErrorCode::kUnsupported);
    return resolved ? "" : resolved.error().message;
  };
  const srg::Piece whole{0, "w.weight", {}, false};
  EXPECT_THAT(
      message({"v", GetParam(), {kColumns}, 0, {{0, "norm.weight", {}, false}}, WeightForm::kInt8}),
      HasSubstr("no matrix"));
  EXPECT_THAT(
      message(
          {"t", GetParam(), {kColumns, kRows}, 0, {{0, "w.weight", {}, true}}, WeightForm::kInt8}),
      HasSubstr("do not lie dense"));
  EXPECT_THAT(message(int8(DType::kFloat64, kRows, {whole})), HasSubstr("neither float32"));
  EXPECT_THAT(
      message({"c", GetParam(), {kRows, 2 * kColumns}, 1, {whole, whole}, WeightForm::kInt8}),
      HasSubstr("concatenated"));
}

INSTANTIATE_TEST_SUITE_P(From, Int8Load,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& from) { return std::string(name_of(from.param)); });

}  // namespace
}  // namespace djinn::load
