// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/plan.h"

#include <gmock/gmock.h>

#include "kernel/load/testing.h"

namespace djinn::load {
namespace {

using srg::Destination;
using srg::LoadPlan;
using srg::Piece;
using srg::TensorEntry;
using testing::bytes_of;
using testing::code_of;
using ::testing::ElementsAre;
using ::testing::Field;

SafetensorsIndex index_of(const testing::FileBuilder& builder) {
  const std::string file = builder.finish();
  return *parse_safetensors_header(bytes_of(file), file.size());
}

// "matrix" float32 [4, 6], "vector" float32 [6], "scalar" int64 [].
SafetensorsIndex small_file() {
  testing::FileBuilder builder;
  builder.add("matrix", "F32", {4, 6}, std::string(96, 'm'));
  builder.add("vector", "F32", {6}, std::string(24, 'v'));
  builder.add("scalar", "I64", {}, std::string(8, 's'));
  return index_of(builder);
}

Destination whole(std::string name, std::vector<uint64_t> sizes) {
  return {name, DType::kFloat32, std::move(sizes), 0, {{0, name, {}, false}}};
}

Result<ReadPlan> resolve_one(Destination destination) {
  const SafetensorsIndex file = small_file();
  return resolve({{std::move(destination)}, {}}, std::span(&file, 1));
}

TEST(Plan, an_empty_plan_takes_every_tensor_in_file_order_at_aligned_places) {
  const SafetensorsIndex file = small_file();
  const auto plan = resolve({}, std::span(&file, 1));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(plan->manifest.extent_bytes, ElementsAre(4096));
  EXPECT_THAT(plan->manifest.tensors,
              ElementsAre(TensorEntry{"matrix", DType::kFloat32, {4, 6}, 0, 0, 96},
                          TensorEntry{"scalar", DType::kInt64, {}, 0, 2 * kTensorAlignment, 8},
                          TensorEntry{"vector", DType::kFloat32, {6}, 0, kTensorAlignment, 24}));
  EXPECT_EQ(plan->written_bytes, 128u);
  ASSERT_EQ(plan->jobs.size(), 3u);
  for (const CopyJob& job : plan->jobs) EXPECT_TRUE(job.plain());
  EXPECT_EQ(plan->jobs[0].file_offset, file.tensors[0].offset);
}

TEST(Plan, several_files_give_one_model_and_no_name_twice) {
  testing::FileBuilder other;
  other.add("other", "U8", {3}, "abc");
  const SafetensorsIndex files[] = {small_file(), index_of(other)};
  const auto plan = resolve({}, files);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->manifest.tensors.size(), 4u);
  EXPECT_EQ(plan->jobs.back().file, 1u);

  const SafetensorsIndex twins[] = {small_file(), small_file()};
  EXPECT_EQ(code_of(resolve({}, twins)), ErrorCode::kAlreadyExists);
}

TEST(Plan, files_without_any_tensor_are_refused) {
  const SafetensorsIndex file = index_of({});
  EXPECT_EQ(code_of(resolve({}, std::span(&file, 1))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(resolve({}, {})), ErrorCode::kInvalidArgument);
}

TEST(Plan, an_empty_tensor_has_a_place_and_no_job) {
  testing::FileBuilder builder;
  builder.add("empty", "F32", {0, 7}, "");
  const SafetensorsIndex file = index_of(builder);
  const auto plan = resolve({}, std::span(&file, 1));
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->jobs.empty());
  EXPECT_THAT(plan->manifest.extent_bytes, ElementsAre(4096));
}

TEST(Plan, a_full_extent_is_followed_by_the_next) {
  testing::FileBuilder builder;
  builder.add("a", "U8", {4000}, std::string(4000, 'a'));
  builder.add("b", "U8", {97}, std::string(97, 'b'));
  builder.add("c", "U8", {4096}, std::string(4096, 'c'));
  const SafetensorsIndex file = index_of(builder);
  const auto plan = resolve({}, std::span(&file, 1), 4096);
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->manifest.extent_bytes, ElementsAre(4096, 4096, 4096));
  EXPECT_THAT(plan->manifest.tensors,
              ElementsAre(Field(&TensorEntry::extent, 0), Field(&TensorEntry::extent, 1),
                          Field(&TensorEntry::extent, 2)));
  testing::FileBuilder large;
  large.add("a", "U8", {4097}, std::string(4097, 'a'));
  const SafetensorsIndex too_large = index_of(large);
  EXPECT_EQ(code_of(resolve({}, std::span(&too_large, 1), 4096)), ErrorCode::kLimitExceeded);
}

TEST(Plan, aliases_share_their_tensors_place) {
  const SafetensorsIndex file = small_file();
  const auto plan = resolve({{}, {{"tied", "matrix"}}}, std::span(&file, 1));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->manifest.tensors.size(), 4u);
  EXPECT_EQ(plan->manifest.tensors[2], (TensorEntry{"tied", DType::kFloat32, {4, 6}, 0, 0, 96}));
  EXPECT_EQ(plan->jobs.size(), 3u);
}

TEST(Plan, adjacent_dimensions_merge_and_single_ones_vanish) {
  Destination rows = whole("matrix", {2, 6});
  rows.pieces[0].slices = {{0, 1, 2}};
  const auto sliced = resolve_one(rows);
  ASSERT_TRUE(sliced);
  EXPECT_TRUE(sliced->jobs[0].plain());
  EXPECT_THAT(sliced->jobs[0].loops, ElementsAre(Loop{12, 4, 4}));

  Destination column = whole("matrix", {4, 1});
  column.pieces[0].slices = {{1, 5, 1}};
  const auto one = resolve_one(column);
  ASSERT_TRUE(one);
  EXPECT_THAT(one->jobs[0].loops, ElementsAre(Loop{4, 24, 4}));
  EXPECT_EQ(one->jobs[0].source_bytes(), 76u);
  EXPECT_EQ(one->jobs[0].target_bytes(), 16u);
}

TEST(Plan, a_transposition_swaps_the_strides) {
  Destination turned = whole("matrix", {6, 4});
  turned.pieces[0].transpose = true;
  const auto plan = resolve_one(turned);
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->jobs[0].loops, ElementsAre(Loop{4, 24, 4}, Loop{6, 4, 16}));
  EXPECT_FALSE(plan->jobs[0].plain());
}

TEST(Plan, concatenated_pieces_lie_side_by_side) {
  Destination both = whole("matrix", {4, 8});
  both.concat_dimension = 1;
  both.pieces.push_back({0, "matrix", {{1, 0, 2}}, false});
  const auto plan = resolve_one(both);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->jobs.size(), 2u);
  EXPECT_THAT(plan->jobs[0].loops, ElementsAre(Loop{4, 24, 32}, Loop{6, 4, 4}));
  EXPECT_EQ(plan->jobs[1].extent_offset, 24u);
  EXPECT_EQ(plan->written_bytes, 128u);
}

struct Refused {
  std::string what;
  ErrorCode code;
  Destination destination;
};

Destination sliced(std::vector<uint64_t> sizes, std::vector<srg::Slice> slices) {
  Destination out = whole("matrix", std::move(sizes));
  out.pieces[0].slices = std::move(slices);
  return out;
}

Destination joined(std::vector<uint64_t> sizes, uint32_t dimension, Piece second) {
  Destination out = whole("matrix", std::move(sizes));
  out.concat_dimension = dimension;
  out.pieces.push_back(std::move(second));
  return out;
}

std::vector<Refused> refused_plans() {
  constexpr uint64_t kHuge = uint64_t{1} << 63;
  Destination no_pieces = whole("matrix", {4, 6});
  no_pieces.pieces.clear();
  Destination no_dtype = whole("matrix", {4, 6});
  no_dtype.dtype = DType::kInvalid;
  Destination odd_dtype = whole("matrix", {4, 6});
  odd_dtype.dtype = static_cast<DType>(200);
  Destination complex = whole("matrix", {4, 6});
  complex.dtype = DType::kComplex64;
  Destination other_file = whole("matrix", {4, 6});
  other_file.pieces[0].file = 1;
  Destination turned_vector = whole("vector", {6});
  turned_vector.pieces[0].transpose = true;
  Destination turned_wrongly = whole("matrix", {4, 6});
  turned_wrongly.pieces[0].transpose = true;
  return {
      {"an unknown tensor", ErrorCode::kNotFound, whole("nothing", {1})},
      {"an unknown file", ErrorCode::kNotFound, other_file},
      {"no pieces", ErrorCode::kInvalidArgument, no_pieces},
      {"no dtype", ErrorCode::kInvalidArgument, no_dtype},
      {"a dtype that is none", ErrorCode::kInvalidArgument, odd_dtype},
      {"a cast to complex", ErrorCode::kUnsupported, complex},
      {"other sizes", ErrorCode::kShapeMismatch, whole("matrix", {6, 4})},
      {"as many elements, one dimension", ErrorCode::kShapeMismatch, whole("matrix", {24})},
      {"sizes that overflow", ErrorCode::kOutOfRange, whole("matrix", {kHuge, kHuge})},
      {"bytes that overflow", ErrorCode::kOutOfRange, whole("matrix", {kHuge})},
      {"too many dimensions", ErrorCode::kLimitExceeded,
       whole("matrix", std::vector<uint64_t>(kRankMax + 1, 1))},
      {"a slice of a third dimension", ErrorCode::kOutOfRange, sliced({4, 6}, {{2, 0, 1}})},
      {"a slice beyond the end", ErrorCode::kOutOfRange, sliced({2, 6}, {{0, 3, 2}})},
      {"a slice from beyond the end", ErrorCode::kOutOfRange, sliced({0, 6}, {{0, 5, 0}})},
      {"a slice whose end overflows", ErrorCode::kOutOfRange, sliced({2, 6}, {{0, ~0ull, 2}})},
      {"a dimension sliced twice", ErrorCode::kInvalidArgument,
       sliced({1, 6}, {{0, 0, 2}, {0, 0, 1}})},
      {"a transposed vector", ErrorCode::kInvalidArgument, turned_vector},
      {"transposed into the old sizes", ErrorCode::kShapeMismatch, turned_wrongly},
      {"a concatenation along a third dimension", ErrorCode::kOutOfRange,
       joined({8, 6}, 2, {0, "matrix", {}, false})},
      {"a concatenation that is too short", ErrorCode::kShapeMismatch,
       joined({9, 6}, 0, {0, "matrix", {}, false})},
      {"a concatenation of other widths", ErrorCode::kShapeMismatch,
       joined({8, 6}, 0, {0, "matrix", {}, true})},
      {"a concatenation of other ranks", ErrorCode::kShapeMismatch,
       joined({5, 6}, 0, {0, "vector", {}, false})},
  };
}

TEST(Plan, a_plan_that_does_not_fit_its_files_is_refused) {
  for (const Refused& row : refused_plans()) {
    EXPECT_EQ(code_of(resolve_one(row.destination)), row.code) << row.what;
  }
}

TEST(Plan, names_are_unique_and_aliases_lead_to_tensors) {
  const SafetensorsIndex file = small_file();
  const auto code = [&](const LoadPlan& plan) {
    return code_of(resolve(plan, std::span(&file, 1)));
  };
  const Destination matrix = whole("matrix", {4, 6});
  EXPECT_EQ(code({{matrix, matrix}, {}}), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code({{matrix}, {{"matrix", "matrix"}}}), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code({{matrix}, {{"a", "matrix"}, {"a", "matrix"}}}), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code({{matrix}, {{"a", "vector"}}}), ErrorCode::kNotFound);
  EXPECT_EQ(code({{matrix}, {{"a", "matrix"}, {"b", "a"}}}), ErrorCode::kNotFound);
  EXPECT_EQ(code({{matrix}, {{"a", "matrix"}}}), ErrorCode::kOk);
}

}  // namespace
}  // namespace djinn::load
