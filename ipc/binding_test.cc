// SPDX-License-Identifier: Apache-2.0

#include "ipc/binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "kernel/base/random.h"

namespace djinn::ipc {
namespace {

using Bytes = std::vector<std::byte>;

// --- random blocks, within limits.h and as an encoder's caller would make them

RefHandle random_ref(Random& random) {
  return {static_cast<uint32_t>(random.below(limits::kRefs)),
          static_cast<uint32_t>(1 + random.below(UINT32_MAX))};
}
SequenceHandle random_sequence(Random& random) {
  return {static_cast<uint32_t>(random.below(limits::kSequences)),
          static_cast<uint32_t>(1 + random.below(UINT32_MAX))};
}
StagingRange random_range(Random& random) {
  return {random.next(), random.next()};
}
template <typename T, typename Make>
std::vector<T> random_list(Random& random, uint64_t count_max, Make make) {
  std::vector<T> list(random.below(count_max + 1));
  for (T& item : list) item = make();
  return list;
}
uint32_t word(Random& random) {
  return static_cast<uint32_t>(random.next());
}
float random_float(Random& random) {
  return static_cast<float>(random.below(1000)) / 128.0f;
}

InputBinding random_input(Random& random) {
  InputBinding input;
  input.storage = word(random);
  input.kind = random.below(2) == 0 ? InputKind::kStaging : InputKind::kRef;
  if (input.kind == InputKind::kStaging) input.staging = random_range(random);
  if (input.kind == InputKind::kRef) input.ref = random_ref(random);
  return input;
}

OutputBinding random_output(Random& random) {
  OutputBinding output;
  output.kind = static_cast<OutputKind>(random.below(3));
  if (output.kind == OutputKind::kStaging) output.staging = random_range(random);
  if (output.kind == OutputKind::kRef) output.ref = random_ref(random);
  return output;
}

RunBlock random_run(Random& random) {
  RunBlock block;
  if (random.below(2) == 0) block.sequence = random_sequence(random);
  block.result = random_range(random);
  block.symbols = random_list<int64_t>(random, limits::kSymbols,
                                       [&] { return static_cast<int64_t>(random.next()); });
  block.inputs = random_list<InputBinding>(random, 40, [&] { return random_input(random); });
  block.outputs = random_list<OutputBinding>(random, 40, [&] { return random_output(random); });
  block.padding = random_list<uint32_t>(random, limits::kRows,
                                        [&] { return static_cast<uint32_t>(random.next()); });
  return block;
}

GenerateBlock random_generate(Random& random) {
  GenerateBlock block;
  block.prefill = 1 + random.below(1000);
  block.decode = 1 + random.below(1000);
  block.sequence = random_sequence(random);
  block.rows = static_cast<uint32_t>(1 + random.below(limits::kRows));
  block.prompt_tokens = static_cast<uint32_t>(random.below(limits::kSequenceTokens + 1));
  block.prompt = random_range(random);
  for (uint32_t row = 0; row < block.rows; ++row) {
    block.padding.push_back(static_cast<uint32_t>(random.below(block.prompt_tokens + 1)));
  }
  block.max_new_tokens = static_cast<uint32_t>(random.below(limits::kSequenceTokens + 1));
  block.min_new_tokens = static_cast<uint32_t>(random.below(block.max_new_tokens + 1));
  block.stop_tokens = random_list<int32_t>(random, limits::kStopTokens,
                                           [&] { return static_cast<int32_t>(random.next()); });
  block.pad_token = static_cast<int32_t>(random.next());
  block.greedy = random.below(2) == 0;
  block.temperature = random_float(random);
  block.top_k = word(random);
  block.top_p = random_float(random);
  block.min_p = random_float(random);
  block.repetition_penalty = random_float(random);
  block.seed = random.next();
  block.random_offset = random.next();
  const auto ref = [&] {
    return InputBinding{word(random), InputKind::kRef, {}, random_ref(random)};
  };
  block.prefill_inputs = random_list<InputBinding>(random, 20, ref);
  block.decode_inputs = random_list<InputBinding>(random, 20, ref);
  block.late_decode = random.below(1000);
  block.late_from = random.next();
  block.late_inputs = random_list<InputBinding>(random, 20, ref);
  block.extend = random.next();
  block.extend_inputs = random_list<InputBinding>(random, 20, ref);
  block.symbols = random_list<int64_t>(random, limits::kSymbols,
                                       [&] { return static_cast<int64_t>(random.next()); });
  return block;
}

ReadBlock random_read(Random& random) {
  ReadBlock block;
  block.ref = random_ref(random);
  block.dtype = static_cast<DType>(1 + random.below(16));
  block.sizes = random_list<uint64_t>(random, limits::kRank, [&] { return random.next(); });
  block.strides.resize(block.sizes.size());
  for (int64_t& stride : block.strides) stride = static_cast<int64_t>(random.next());
  block.offset = random.next();
  block.staging = random_range(random);
  return block;
}

WriteBlock random_write(Random& random) {
  return {random_ref(random), random_range(random), random.next(), random.next()};
}
ReleaseBlock random_release(Random& random) {
  return {random_list<RefHandle>(random, 300, [&] { return random_ref(random); })};
}
CropBlock random_crop(Random& random) {
  return {random_sequence(random), random.below(limits::kSequenceTokens + 1)};
}
ReorderBlock random_reorder(Random& random) {
  ReorderBlock block{random_sequence(random), {}};
  block.rows.resize(1 + random.below(limits::kRows));
  for (uint32_t& row : block.rows) row = static_cast<uint32_t>(random.below(block.rows.size()));
  return block;
}

// --- properties of every kind of block

template <typename Block>
using Decode = Result<Block> (*)(std::span<const std::byte>);

// A copy whose end is the end of an allocation, so that a sanitizer sees every read behind it.
Bytes exact(const Bytes& bytes, size_t length) {
  return Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
}

template <typename Block>
void expect_round_trips(Block (*make)(Random&), Decode<Block> decode) {
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    const Block block = make(random);
    const Bytes bytes = encode(block);
    ASSERT_EQ(bytes.size() % 8, 0u);
    const auto decoded = decode(bytes);
    ASSERT_TRUE(decoded) << decoded.error().message;
    ASSERT_EQ(*decoded, block);
  }
}

// Every other length is refused: the byte count must match exactly.
template <typename Block>
void expect_exact_size(Block (*make)(Random&), Decode<Block> decode) {
  Random random(2);
  for (int i = 0; i < 5; ++i) {
    Bytes bytes = encode(make(random));
    for (size_t length = 0; length < bytes.size(); ++length) {
      const auto decoded = decode(exact(bytes, length));
      ASSERT_FALSE(decoded);
      ASSERT_EQ(decoded.error().code, ErrorCode::kMalformed);
    }
    bytes.resize(bytes.size() + 8);
    ASSERT_EQ(decode(bytes).error().code, ErrorCode::kMalformed);
  }
}

void mutate(Bytes& bytes, Random& random) {
  for (uint64_t i = 0; i <= random.below(4); ++i) {
    // Mostly in the head, where the counts are.
    const uint64_t at =
        random.below(random.below(2) == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 16));
    bytes[at] = static_cast<std::byte>(random.below(2) == 0 ? random.below(256) : 0xff);
  }
}

// Mutated bytes are refused with a documented code, or mean exactly what they say: what was decoded
// encodes to the same bytes again.
template <typename Block>
void expect_mutations_harmless(Block (*make)(Random&), Decode<Block> decode) {
  Random random(3);
  for (int i = 0; i < 3000; ++i) {
    Bytes bytes = encode(make(random));
    mutate(bytes, random);
    const auto decoded = decode(exact(bytes, bytes.size()));
    if (decoded) {
      ASSERT_EQ(encode(*decoded), bytes);
    } else {
      ASSERT_THAT(decoded.error().code,
                  testing::AnyOf(ErrorCode::kMalformed, ErrorCode::kLimitExceeded));
    }
  }
}

template <typename Block>
void expect_codec(Block (*make)(Random&), Decode<Block> decode) {
  expect_round_trips(make, decode);
  expect_exact_size(make, decode);
  expect_mutations_harmless(make, decode);
}

TEST(Binding, run_blocks_survive_the_wire) {
  expect_codec(random_run, decode_run);
}
TEST(Binding, generate_blocks_survive_the_wire) {
  expect_codec(random_generate, decode_generate);
}
TEST(Binding, read_blocks_survive_the_wire) {
  expect_codec(random_read, decode_read);
}
TEST(Binding, write_blocks_survive_the_wire) {
  expect_codec(random_write, decode_write);
}
TEST(Binding, release_blocks_survive_the_wire) {
  expect_codec(random_release, decode_release);
}
TEST(Binding, crop_blocks_survive_the_wire) {
  expect_codec(random_crop, decode_crop);
}
TEST(Binding, reorder_blocks_survive_the_wire) {
  expect_codec(random_reorder, decode_reorder);
}

TEST(Binding, noise_of_any_length_is_refused_or_decoded_but_never_worse) {
  Random random(4);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(random.below(256));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next() & random.next());
    (void)decode_run(bytes);
    (void)decode_generate(bytes);
    (void)decode_read(bytes);
    (void)decode_write(bytes);
    (void)decode_release(bytes);
    (void)decode_crop(bytes);
    (void)decode_reorder(bytes);
  }
}

TEST(Binding, a_description_is_good_or_refused) {
  const auto decoded = [](uint32_t dtype, uint32_t rank) {
    std::array<OutputDescription, 2> written;
    written[1].dtype = dtype;
    written[1].rank = rank;
    return decode_description(std::as_bytes(std::span(written)), 1);
  };
  const auto good = decoded(static_cast<uint32_t>(DType::kFloat32), limits::kRank);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->rank, limits::kRank);
  for (const auto& [dtype, rank] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0, 1}, {255, 1}, {UINT32_MAX, 1}, {1, limits::kRank + 1}, {1, UINT32_MAX}}) {
    const auto bad = decoded(dtype, rank);
    ASSERT_FALSE(bad.ok()) << dtype << " " << rank;
    EXPECT_EQ(bad.error().code, ErrorCode::kMalformed);
  }
}

TEST(Binding, a_description_of_more_than_there_can_be_is_refused) {
  const auto decoded = [](std::vector<int64_t> sizes, std::vector<int64_t> strides,
                          uint64_t offset) {
    OutputDescription out;
    out.dtype = static_cast<uint32_t>(DType::kFloat32);
    out.rank = static_cast<uint32_t>(sizes.size());
    out.offset = offset;
    std::ranges::copy(sizes, out.sizes.begin());
    std::ranges::copy(strides, out.strides.begin());
    return decode_description(std::as_bytes(std::span(&out, 1)), 0);
  };
  constexpr int64_t kMost = INT64_MAX;
  const auto good = decoded({2, 3}, {3, 1}, 7);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(bytes_of(*good), 24u);
  const auto empty = decoded({2, 0, 3}, {3, 3, 1}, 0);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(bytes_of(*empty), 0u);
  EXPECT_TRUE(decoded({2}, {0}, kMost).ok());
  EXPECT_FALSE(decoded({-1}, {1}, 0).ok());
  EXPECT_FALSE(decoded({2}, {-1}, 8).ok());
  EXPECT_FALSE(decoded({kMost / 4 + 1}, {0}, 0).ok()) << "so many bytes";
  EXPECT_FALSE(decoded({1 << 20, 1 << 20, 1 << 21}, {0, 0, 0}, 0).ok());
  EXPECT_FALSE(decoded({kMost, 0, kMost}, {0, 0, 0}, 0).ok()) << "numpy has no such array";
  EXPECT_FALSE(decoded({3}, {kMost}, 0).ok()) << "so far away";
  EXPECT_FALSE(decoded({2}, {1}, kMost).ok());
  EXPECT_FALSE(decoded({2}, {1}, UINT64_MAX).ok());
}

TEST(Binding, a_generation_takes_little_beside_its_prompt) {
  GenerateBlock block;
  block.rows = limits::kRows;
  block.padding.resize(limits::kRows);
  block.stop_tokens.resize(limits::kStopTokens);
  EXPECT_LE(encode(block).size(), 1024U);
}

TEST(Binding, a_table_holds_as_many_storages_as_limits_say) {
  RunBlock block;
  block.symbols.resize(limits::kSymbols);
  for (uint32_t i = 0; i < 2700; ++i) block.inputs.push_back({i, InputKind::kStaging, {}, {}});
  ASSERT_LE(encode(block).size(), limits::kBindingTableBytes);
  EXPECT_TRUE(decode_run(encode(block)));
  block.inputs.resize(2720);
  EXPECT_EQ(decode_run(encode(block)).error().code, ErrorCode::kLimitExceeded);
}

// --- malformed input, one fault at a time

GenerateBlock good_generate() {
  GenerateBlock block;
  block.prefill = 1;
  block.decode = 2;
  block.sequence = {3, 4};
  block.rows = 2;
  block.prompt_tokens = 5;
  block.padding = {0, 4};
  block.min_new_tokens = 1;
  block.max_new_tokens = 6;
  block.stop_tokens = {7};
  block.prefill_inputs = {{0, InputKind::kRef, {}, {8, 9}}};
  return block;
}

RunBlock good_run() {
  RunBlock block;
  block.sequence = {1, 2};
  block.symbols = {3};
  block.inputs = {{0, InputKind::kStaging, {8, 16}, {}}, {1, InputKind::kRef, {}, {4, 5}}};
  block.outputs = {{}, {OutputKind::kStaging, {24, 8}, {}}, {OutputKind::kRef, {}, {6, 7}}};
  return block;
}

template <typename T>
Bytes patched(Bytes bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

struct Fault {
  const char* what;
  ErrorCode code;
  std::function<ErrorCode()> decode;
};

template <typename T>
ErrorCode code_of(const Result<T>& result) {
  return result ? ErrorCode::kOk : result.error().code;
}

template <typename T>
Fault run_fault(const char* what, ErrorCode code, size_t at, T value) {
  return {what, code, [=] { return code_of(decode_run(patched(encode(good_run()), at, value))); }};
}
template <typename T>
Fault generate_fault(const char* what, ErrorCode code, size_t at, T value) {
  return {what, code,
          [=] { return code_of(decode_generate(patched(encode(good_generate()), at, value))); }};
}
template <typename T>
Fault read_fault(const char* what, ErrorCode code, size_t at, T value) {
  return {what, code, [=] {
            const ReadBlock good{{1, 1}, DType::kFloat32, {2}, {1}, 0, {0, 8}};
            return code_of(decode_read(patched(encode(good), at, value)));
          }};
}
template <typename T>
Fault reorder_fault(const char* what, ErrorCode code, size_t at, T value) {
  return {
      what, code, [=] {
        return code_of(decode_reorder(patched(encode(ReorderBlock{{1, 1}, {1, 0}}), at, value)));
      }};
}

std::vector<Fault> faults() {
  constexpr ErrorCode kBad = ErrorCode::kMalformed, kOver = ErrorCode::kLimitExceeded;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const uint32_t huge = UINT32_MAX;
  return {
      // RunBlock: head of 40, one symbol, then inputs at 48 and 72, outputs at 96, 120 and 144.
      run_fault("sequence index over its limit", kOver, 0, limits::kSequences),
      run_fault("half a sequence handle", kBad, 4, uint32_t{0}),
      run_fault("more symbols than limits.h", kOver, 24, limits::kSymbols + 1),
      run_fault("symbols that are not there", kBad, 24, uint32_t{2}),
      run_fault("inputs without number", kBad, 28, huge),
      run_fault("outputs without number", kBad, 32, huge),
      run_fault("paddings that are not there", kBad, 36, uint32_t{1}),
      run_fault("unknown input kind", kBad, 52, uint32_t{3}),
      run_fault("input kind 0", kBad, 52, uint32_t{0}),
      run_fault("input ref of generation 0", kBad, 84, uint32_t{0}),
      run_fault("input ref over its limit", kOver, 80, limits::kRefs),
      run_fault("reserved word of an input ref", kBad, 88, uint64_t{1}),
      run_fault("unknown output kind", kBad, 96, uint32_t{3}),
      run_fault("reserved word of an output", kBad, 100, uint32_t{1}),
      run_fault("place of an output that goes nowhere", kBad, 104, uint64_t{1}),
      run_fault("output ref of generation 0", kBad, 156, uint32_t{0}),
      run_fault("output ref over its limit", kOver, 152, limits::kRefs),
      // GenerateBlock: head of 152, paddings at 152 and 160, a stop token at 168, a ref at 176.
      generate_fault("no prefill program", kBad, 0, uint64_t{0}),
      generate_fault("no decode program", kBad, 8, uint64_t{0}),
      generate_fault("no sequence", kBad, 36, uint32_t{0}),
      generate_fault("no rows", kBad, 40, uint32_t{0}),
      generate_fault("too many rows", kOver, 40, limits::kRows + 1),
      generate_fault("rows without padding", kBad, 40, uint32_t{3}),
      generate_fault("prompt beyond any capacity", kOver, 44, huge),
      generate_fault("least above largest", kBad, 64, uint32_t{7}),
      generate_fault("more new tokens than any capacity", kOver, 68, huge),
      generate_fault("too many stop tokens", kOver, 72, limits::kStopTokens + 1),
      generate_fault("stop tokens that are not there", kBad, 72, uint32_t{2}),
      generate_fault("greedy is 2", kBad, 80, uint32_t{2}),
      generate_fault("temperature is NaN", kBad, 84, kNan),
      generate_fault("top_p is infinite", kBad, 92, kInf),
      generate_fault("min_p is -infinite", kBad, 96, -kInf),
      generate_fault("penalty is NaN", kBad, 100, kNan),
      generate_fault("padding above the prompt", kBad, 152, uint32_t{6}),
      generate_fault("reserved word of a padding", kBad, 156, uint32_t{1}),
      generate_fault("reserved word of a stop token", kBad, 172, uint32_t{1}),
      generate_fault("inputs that are not there", kBad, 120, uint32_t{2}),
      generate_fault("inputs of parts that are not there", kBad, 144, uint32_t{1}),
      generate_fault("reserved word of the inputs of parts", kBad, 148, uint32_t{1}),
      generate_fault("an input in staging", kBad, 180, uint32_t{1}),
      read_fault("ref of generation 0", kBad, 4, uint32_t{0}),
      read_fault("dtype 0", kBad, 8, uint32_t{0}),
      read_fault("unknown dtype", kBad, 8, uint32_t{18}),
      read_fault("dtype 256 + float32", kBad, 8, uint32_t{256 + 9}),
      read_fault("rank over its limit", kOver, 12, limits::kRank + 1),
      read_fault("dimensions that are not there", kBad, 12, uint32_t{2}),
      reorder_fault("no rows", kBad, 8, uint32_t{0}),
      reorder_fault("too many rows", kOver, 8, limits::kRows + 1),
      reorder_fault("a row that is not there", kBad, 16, uint32_t{2}),
      reorder_fault("reserved word", kBad, 12, uint32_t{1}),
      {"more refs than limits.h", kOver,
       [] { return code_of(decode_release(encode(ReleaseBlock{std::vector<RefHandle>(9000)}))); }},
      {"a count of refs that is not there", kBad,
       [] { return code_of(decode_release(patched(Bytes(8), 0, limits::kRefs))); }},
      {"a crop beyond any capacity", kOver,
       [] {
         return code_of(decode_crop(encode(CropBlock{{1, 1}, limits::kSequenceTokens + 1})));
       }},
      {"a write to no ref", kBad, [] { return code_of(decode_write(Bytes(24))); }},
      {"more than a table", kOver,
       [] { return code_of(decode_run(Bytes(limits::kBindingTableBytes + 8))); }},
  };
}

TEST(Binding, each_fault_has_its_documented_code) {
  for (const Fault& fault : faults()) EXPECT_EQ(fault.decode(), fault.code) << fault.what;
}

TEST(Binding, the_blocks_of_the_fault_table_are_good_without_their_fault) {
  EXPECT_TRUE(decode_run(encode(good_run())));
  EXPECT_TRUE(decode_generate(encode(good_generate())));
  EXPECT_TRUE(decode_read(encode(ReadBlock{{1, 1}, DType::kFloat32, {2}, {1}, 0, {0, 8}})));
  EXPECT_TRUE(decode_reorder(encode(ReorderBlock{{1, 1}, {1, 0}})));
}

// --- what of staging a submission is about

Submission of(Operation operation) {
  Submission submission;
  submission.operation = static_cast<uint16_t>(operation);
  return submission;
}

std::vector<StagingRange> staged(const std::vector<InputBinding>& inputs) {
  std::vector<StagingRange> ranges;
  for (const InputBinding& input : inputs) {
    if (input.kind == InputKind::kStaging) ranges.push_back(input.staging);
  }
  return ranges;
}

TEST(StagingOf, a_run_reads_its_inputs_and_writes_its_outputs_and_their_descriptions) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    const RunBlock block = random_run(random);
    StagingUse expected{staged(block.inputs), {}};
    for (const OutputBinding& output : block.outputs) {
      if (output.kind == OutputKind::kStaging) expected.written.push_back(output.staging);
    }
    if (block.result.bytes != 0) expected.written.push_back(block.result);
    EXPECT_EQ(staging_of(of(Operation::kRun), encode(block)).value(), expected);
    Submission once = of(Operation::kRunOnce);
    once.graph_offset = 8192;
    once.graph_bytes = 100;
    expected.read.push_back({8192, 100});
    EXPECT_EQ(staging_of(once, encode(block)).value(), expected);
  }
}

TEST(StagingOf, other_operations_read_or_write_the_range_that_they_have) {
  Random random(12);
  for (int round = 0; round < 200; ++round) {
    const GenerateBlock generate = random_generate(random);
    EXPECT_EQ(staging_of(of(Operation::kGenerate), encode(generate)).value(),
              (StagingUse{{generate.prompt}, {}}));
    const ReadBlock read = random_read(random);
    EXPECT_EQ(staging_of(of(Operation::kReadRef), encode(read)).value(),
              (StagingUse{{}, {read.staging}}));
    const WriteBlock write = random_write(random);
    EXPECT_EQ(staging_of(of(Operation::kWriteRef), encode(write)).value(),
              (StagingUse{{write.staging}, {}}));
  }
  for (const auto none : {Operation::kNop, Operation::kReleaseRefs, Operation::kCropSequence,
                          Operation::kReorderSequence}) {
    EXPECT_EQ(staging_of(of(none), {}).value(), StagingUse());
  }
}

TEST(StagingOf, what_is_no_block_or_no_operation_is_an_error) {
  EXPECT_FALSE(staging_of(of(Operation::kRun), std::vector<std::byte>(3)));
  EXPECT_EQ(staging_of(of(static_cast<Operation>(kOperations)), {}).error().code,
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace djinn::ipc
