// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/safetensors.h"

#include <gmock/gmock.h>

#include "kernel/load/testing.h"

namespace djinn::load {
namespace {

using testing::bytes_of;
using testing::code_of;
using ::testing::ElementsAre;
using testing::file_of;
using ::testing::HasSubstr;
using testing::length_prefix;
using ::testing::Pair;

Result<SafetensorsIndex> parse(const std::string& file) {
  return parse_safetensors_header(bytes_of(file), file.size());
}

constexpr std::string_view kTwoTensors =
    R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("a":{"dtype":"I8","shape":[4],"data_offsets":[24,28]}})";

TEST(Safetensors, a_header_gives_names_dtypes_sizes_and_file_ranges) {
  const auto index = parse(file_of(kTwoTensors, 28));
  ASSERT_TRUE(index) << index.error().message;
  const uint64_t data = 8 + kTwoTensors.size();
  EXPECT_EQ(index->file_bytes, data + 28);
  ASSERT_EQ(index->tensors.size(), 2u);
  EXPECT_EQ(index->tensors[0], (TensorRecord{"b", DType::kFloat32, {2, 3}, data, 24}));
  EXPECT_EQ(index->tensors[1], (TensorRecord{"a", DType::kInt8, {4}, data + 24, 4}));
  EXPECT_EQ(index->find("a"), &index->tensors[1]);
  EXPECT_EQ(index->find("c"), nullptr);
}

TEST(Safetensors, a_file_that_is_cut_short_tells_both_sizes) {
  const std::string whole = file_of(kTwoTensors, 28);
  const auto told = [&](size_t bytes) { return parse(whole.substr(0, bytes)).error().message; };
  const std::string sizes = " of " + std::to_string(whole.size()) + " bytes.";
  EXPECT_NE(
      told(whole.size() - 1).find("cut short, with " + std::to_string(whole.size() - 1) + sizes),
      std::string::npos);
  EXPECT_NE(told(whole.size() - 28).find(sizes), std::string::npos);
  // Of what is in the header, nothing can be said but how long it is.
  EXPECT_NE(told(20).find("cut short, with 20 of " + std::to_string(whole.size() - 28) + " bytes."),
            std::string::npos);
}

TEST(Safetensors, what_the_reference_accepts_is_accepted) {
  const std::pair<std::string, size_t> rows[] = {
      {"{}", 0},
      {"{} \n\t\r ", 0},
      {R"({"__metadata__":{"format":"pt"}})", 0},
      {R"({"__metadata__":null})", 0},
      {R"({"__metadata__":{}})", 0},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0},
      {R"({"a":{"dtype":"F32","shape":[5,0,3],"data_offsets":[0,0]},)"
       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1},
      {R"({"a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}})", 1},
      {R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
      {R"({"ü\u00fc😀\ud83d\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"note":[{"x":[1,-2.5,null]},"y"]}})",
       1},
      {R"({"a":{"note":null,"more":true,"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
  };
  for (const auto& [header, data_bytes] : rows) {
    const auto index = parse(file_of(header, data_bytes));
    EXPECT_TRUE(index) << header << ": " << index.error().message;
  }
}

TEST(Safetensors, every_dtype_of_whole_bytes_is_known) {
  const std::pair<std::string, DType> rows[] = {
      {"BOOL", DType::kBool},     {"U8", DType::kUInt8},           {"I8", DType::kInt8},
      {"I16", DType::kInt16},     {"U16", DType::kUInt16},         {"F16", DType::kFloat16},
      {"BF16", DType::kBFloat16}, {"I32", DType::kInt32},          {"U32", DType::kUInt32},
      {"F32", DType::kFloat32},   {"F64", DType::kFloat64},        {"I64", DType::kInt64},
      {"U64", DType::kUInt64},    {"F8_E4M3", DType::kFloat8E4M3}, {"F8_E5M2", DType::kFloat8E5M2},
      {"C64", DType::kComplex64},
  };
  for (const auto& [name, dtype] : rows) {
    testing::FileBuilder builder;
    builder.add("t", name, {3}, std::string(3 * size_of(dtype), 'x'));
    const auto index = parse(builder.finish());
    ASSERT_TRUE(index) << name << ": " << index.error().message;
    EXPECT_EQ(index->tensors[0].dtype, dtype);
  }
}

TEST(Safetensors, metadata_is_kept_sorted) {
  const auto index = parse(file_of(R"({"__metadata__":{"b":"2","a":"1"}})", 0));
  ASSERT_TRUE(index);
  EXPECT_THAT(index->metadata, ElementsAre(Pair("a", "1"), Pair("b", "2")));
}

TEST(Safetensors, metadata_takes_no_more_memory_than_a_header_of_tensors) {
  const auto with_entries = [](uint32_t count) {
    std::string header = R"({"__metadata__":{)";
    for (uint32_t i = 0; i < count; ++i) {
      header += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":"")";
    }
    return parse(file_of(header + "}}", 0));
  };
  EXPECT_TRUE(with_entries(kMetadataMax));
  const auto refused = with_entries(kMetadataMax + 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
}

struct Malformed {
  std::string what;
  std::string file;
  ErrorCode code = ErrorCode::kMalformed;
};

std::string one_tensor(std::string_view fields, size_t data_bytes = 4) {
  return file_of(R"({"t":{)" + std::string(fields) + "}}", data_bytes);
}

std::vector<Malformed> broken_frames() {
  return {
      {"an empty file", ""},
      {"seven bytes", std::string(7, '\0')},
      {"a length and nothing else", length_prefix(2)},
      {"a header of no bytes", length_prefix(0)},
      {"a length beyond the file", length_prefix(3) + "{}"},
      {"a length over the limit", length_prefix(kHeaderBytesMax + 1) + "{}"},
      {"the largest length", std::string(8, '\xff') + "{}"},
      {"a length just under the limit", length_prefix(kHeaderBytesMax) + "{}"},
      {"a space first", file_of(" {}", 0)},
      {"a byte order mark first", file_of("\xef\xbb\xbf{}", 0)},
      {"a file longer than its tensors", file_of("{}", 1)},
      {"a file shorter than its tensors",
       file_of(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3)},
  };
}

std::vector<Malformed> broken_json() {
  return {
      {"an array", file_of("[]", 0)},
      {"a number", file_of("1", 0)},
      {"a lone brace", file_of("{", 0)},
      {"a key without a value", file_of(R"({"a"})", 0)},
      {"a key without quotes", file_of("{a:1}", 0)},
      {"a trailing comma", file_of(R"({"__metadata__":{},})", 0)},
      {"a comment", file_of("{/* */}", 0)},
      {"text after the object", file_of("{} {}", 0)},
      {"a zero byte after the object", file_of(std::string("{}\0", 3), 0)},
      {"a zero byte and more after the object", file_of(std::string("{}\0junk", 7), 0)},
      {"a byte that is not UTF-8 in a name", file_of("{\"\xff\":{}}", 0)},
      {"an overlong UTF-8 sequence", file_of("{\"\xc0\xaf\":{}}", 0)},
      {"a UTF-8 surrogate", file_of("{\"\xed\xa0\x80\":{}}", 0)},
      {"a lone escaped surrogate", file_of(R"({"\ud800":{}})", 0)},
      {"an unknown escape", file_of(R"({"\q":{}})", 0)},
      {"a raw newline in a name", file_of("{\"a\nb\":{}}", 0)},
      {"an escaped newline in a name", file_of(R"({"a\nb":{}})", 0)},
      {"a control character of two bytes in a name", file_of(R"({"a\u009b":{}})", 0)},
      {"endless nesting", one_tensor(R"("x":)" + std::string(100'000, '['))},
      {"nesting just too deep",
       one_tensor(R"("x":)" + std::string(129, '[') + std::string(129, ']'))},
      {"a huge exponent", one_tensor(R"("x":1e999999)")},
  };
}

std::vector<Malformed> broken_structure() {
  const std::string good = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
  return {
      {"a tensor that is null", file_of(R"({"t":null})", 0)},
      {"a tensor that is a string", file_of(R"({"t":"F32"})", 0)},
      {"a tensor that is an array", file_of(R"({"t":["F32",[1],[0,4]]})", 4)},
      {"a tensor without fields", one_tensor("", 0)},
      {"no dtype", one_tensor(R"("shape":[1],"data_offsets":[0,4])")},
      {"no shape", one_tensor(R"("dtype":"F32","data_offsets":[0,4])")},
      {"no offsets", one_tensor(R"("dtype":"F32","shape":[1])")},
      {"two dtypes", one_tensor(good + R"(,"dtype":"F32")")},
      {"two shapes", one_tensor(good + R"(,"shape":[1])")},
      {"two offsets", one_tensor(good + R"(,"data_offsets":[0,4])")},
      {"two tensors of one name", file_of("{\"t\":{" + good + "},\"t\":{" + good + "}}", 4)},
      {"one name, escaped once",
       file_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
               R"("\u0074":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
               2)},
      {"two metadata", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0)},
      {"one metadata key twice", file_of(R"({"__metadata__":{"a":"1","a":"1"}})", 0)},
      {"metadata that is a string", file_of(R"({"__metadata__":"pt"})", 0)},
      {"metadata that is an array", file_of(R"({"__metadata__":[]})", 0)},
      {"a metadata value that is a number", file_of(R"({"__metadata__":{"a":1}})", 0)},
      {"a metadata value that is null", file_of(R"({"__metadata__":{"a":null}})", 0)},
      {"a metadata value that is an object", file_of(R"({"__metadata__":{"a":{}}})", 0)},
  };
}

std::vector<Malformed> broken_fields() {
  std::string many_dimensions = R"("dtype":"U8","shape":[1)";
  for (uint32_t i = 0; i < kRankMax; ++i) many_dimensions += ",1";
  many_dimensions += R"(],"data_offsets":[0,1])";
  const auto dtype = [](std::string_view name) {
    return one_tensor("\"dtype\":" + std::string(name) + R"(,"shape":[1],"data_offsets":[0,4])");
  };
  const auto shape = [](std::string_view list) {
    return one_tensor(R"("dtype":"F32","shape":)" + std::string(list) + R"(,"data_offsets":[0,4])");
  };
  const auto offsets = [](std::string_view list) {
    return one_tensor(R"("dtype":"F32","shape":[1],"data_offsets":)" + std::string(list));
  };
  return {
      {"an unknown dtype", dtype(R"("F33")"), ErrorCode::kUnsupported},
      {"a dtype in lower case", dtype(R"("f32")"), ErrorCode::kUnsupported},
      {"an empty dtype", dtype(R"("")"), ErrorCode::kUnsupported},
      {"four bits", dtype(R"("F4")"), ErrorCode::kUnsupported},
      {"six bits", dtype(R"("F6_E2M3")"), ErrorCode::kUnsupported},
      {"six bits again", dtype(R"("F6_E3M2")"), ErrorCode::kUnsupported},
      {"an exponent alone", dtype(R"("F8_E8M0")"), ErrorCode::kUnsupported},
      {"a dtype that is a number", dtype("32")},
      {"a dtype that is null", dtype("null")},
      {"a shape that is a number", shape("1")},
      {"a shape that is an object", shape("{}")},
      {"a shape of strings", shape(R"(["1"])")},
      {"a shape of arrays", shape("[[1]]")},
      {"a negative size", shape("[-1]")},
      {"a size of minus zero", shape("[-0]")},
      {"a size with a fraction", shape("[1.0]")},
      {"a size with an exponent", shape("[1e0]")},
      {"a size with a leading zero", shape("[01]")},
      {"a size of 2^64", shape("[18446744073709551616]")},
      {"a boolean size", shape("[true]")},
      {"too many dimensions", one_tensor(many_dimensions, 1), ErrorCode::kLimitExceeded},
      {"sizes whose product overflows", shape("[4294967296,4294967296]"), ErrorCode::kOutOfRange},
      {"a product that overflows before a zero", shape("[4294967296,4294967296,0]"),
       ErrorCode::kOutOfRange},
      {"elements whose bytes overflow", shape("[4611686018427387904]"), ErrorCode::kOutOfRange},
      {"too few bytes for the shape", shape("[2]"), ErrorCode::kShapeMismatch},
      {"too many bytes for the shape", shape("[0]"), ErrorCode::kShapeMismatch},
      {"one offset", offsets("[0]")},
      {"no offset", offsets("[]")},
      {"three offsets", offsets("[0,4,4]")},
      {"a negative offset", offsets("[-4,0]")},
      {"an offset of 2^64", offsets("[0,18446744073709551616]")},
      {"an offset that is a string", offsets(R"(["0",4])")},
      {"an offset with a fraction", offsets("[0.0,4]")},
      {"offsets that are an object", offsets("{}")},
      {"an end before the begin", offsets("[4,0]")},
      {"an end beyond the file", one_tensor(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])")},
      {"an end near 2^64", one_tensor(R"("dtype":"U8","shape":[18446744073709551615],)"
                                      R"("data_offsets":[0,18446744073709551615])")},
      {"a hole before the first", offsets("[1,5]")},
  };
}

std::vector<Malformed> broken_layout() {
  const auto two = [](std::string_view first, std::string_view second, size_t data_bytes) {
    return file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(first) +
                       R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(second) +
                       "}}",
                   data_bytes);
  };
  return {
      {"a hole between tensors", two("[0,4]", "[5,9]", 9)},
      {"tensors that overlap", two("[0,4]", "[3,7]", 7)},
      {"tensors on one place", two("[0,4]", "[0,4]", 4)},
      {"tensors out of order with a hole", two("[5,9]", "[0,4]", 9)},
      {"an empty tensor inside another",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
               4)},
      {"bytes after the last tensor", two("[0,4]", "[4,8]", 9)},
  };
}

void expect_refused(const std::vector<Malformed>& rows) {
  for (const Malformed& row : rows) {
    const auto index = parse(row.file);
    EXPECT_EQ(code_of(index), row.code) << row.what;
    if (!index) {
      EXPECT_THAT(index.error().message, HasSubstr(".")) << row.what;
    }
  }
}

TEST(Safetensors, a_broken_frame_is_refused) {
  expect_refused(broken_frames());
}
TEST(Safetensors, broken_json_is_refused) {
  expect_refused(broken_json());
}
TEST(Safetensors, a_broken_structure_is_refused) {
  expect_refused(broken_structure());
}
TEST(Safetensors, a_broken_field_is_refused) {
  expect_refused(broken_fields());
}
TEST(Safetensors, a_broken_layout_is_refused) {
  expect_refused(broken_layout());
}

TEST(Safetensors, a_header_not_read_to_its_end_is_refused) {
  const std::string file = file_of(kTwoTensors, 28);
  for (size_t cut = 0; cut < 8 + kTwoTensors.size(); ++cut) {
    const auto index = parse_safetensors_header(bytes_of(file).first(cut), file.size());
    EXPECT_EQ(code_of(index), ErrorCode::kMalformed) << cut;
  }
}

TEST(Safetensors, messages_never_carry_control_characters_or_long_names) {
  const std::string name = R"(\n\u001b[2J)" + std::string(10'000, 'x');
  const auto index = parse(file_of("{\"" + name + R"(":{"dtype":"F33"}})", 0));
  ASSERT_FALSE(index);
  EXPECT_LT(index.error().message.size(), 300u);
  for (const char c : index.error().message) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

// What every index promises, whatever bytes it came from.
void expect_consistent(const SafetensorsIndex& index, uint64_t header_bytes) {
  uint64_t end = header_bytes;
  for (const TensorRecord& tensor : index.tensors) {
    ASSERT_EQ(tensor.offset, end);
    end += tensor.bytes;
    uint64_t bytes = size_of(tensor.dtype);
    ASSERT_GT(bytes, 0u);
    for (const uint64_t size : tensor.sizes) bytes *= size;
    ASSERT_EQ(bytes, tensor.bytes);
    ASSERT_EQ(index.find(tensor.name), &tensor);
  }
  ASSERT_EQ(end, index.file_bytes);
}

std::string valid_file() {
  testing::FileBuilder builder;
  builder.add("embeddings.word", "F32", {4, 6}, std::string(96, 'a'));
  builder.add("bias", "BF16", {5}, std::string(10, 'b'));
  builder.add("empty", "I64", {0, 2}, "");
  builder.add("flag", "BOOL", {}, "c");
  return builder.finish();
}

#ifdef __SANITIZE_ADDRESS__
constexpr int kRounds = 40'000;  // instrumented code is many times slower
#else
constexpr int kRounds = 200'000;
#endif

TEST(Safetensors, flipped_bytes_give_an_error_or_a_consistent_index) {
  const std::string valid = valid_file();
  ASSERT_TRUE(parse(valid));
  Random random(1);
  int accepted = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::string file = valid;
    for (uint64_t flips = 1 + random.below(3); flips > 0; --flips) {
      file[random.below(file.size())] = static_cast<char>(random.next());
    }
    const auto header_bytes = safetensors_header_bytes(bytes_of(file), file.size());
    const auto index = parse(file);
    if (!index) continue;
    ++accepted;
    ASSERT_NO_FATAL_FAILURE(expect_consistent(*index, *header_bytes)) << file;
  }
  EXPECT_GT(accepted, kRounds / 200) << "the flips hit nothing but data";
  EXPECT_LT(accepted, kRounds - kRounds / 200) << "the parser lets everything through";
}

TEST(Safetensors, moved_pieces_of_a_header_give_an_error_or_a_consistent_index) {
  const std::string valid = valid_file();
  Random random(2);
  for (int round = 0; round < 50'000; ++round) {
    std::string file = valid;
    const size_t from = random.below(file.size());
    const std::string piece = file.substr(from, random.below(20));
    file.insert(random.below(file.size()), piece);
    const auto header_bytes = safetensors_header_bytes(bytes_of(file), file.size());
    const auto index = parse(file);
    if (index) {
      ASSERT_NO_FATAL_FAILURE(expect_consistent(*index, *header_bytes)) << file;
    }
  }
}

}  // namespace
}  // namespace djinn::load
