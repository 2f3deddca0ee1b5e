// SPDX-License-Identifier: Apache-2.0

#include "ipc/binding.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::ipc {
namespace {

static_assert(std::endian::native == std::endian::little, "The wire form is little-endian.");

// These are the bytes of each block's head, and of the array elements behind it.
constexpr size_t kRunHead = 40, kSymbolBytes = 8, kInputBytes = 24, kOutputBytes = 24;
constexpr size_t kGenerateHead = 152, kSmallBytes = 8;  // a 32-bit element with its padding
constexpr size_t kReadHead = 40, kDimensionBytes = 16;  // a size and a stride
constexpr size_t kWriteHead = 40;
constexpr size_t kReleaseHead = 8, kRefBytes = 8;
constexpr size_t kCropHead = 16;
constexpr size_t kReorderHead = 16;
// The largest run that fits the limits must be decodable from one table.
static_assert(kRunHead + limits::kSymbols * kSymbolBytes < limits::kBindingTableBytes);
static_assert(kRunHead + limits::kProgramOutputs * kOutputBytes < limits::kBindingTableBytes);
static_assert(kGenerateHead + (limits::kRows + limits::kStopTokens) * kSmallBytes <
              limits::kBindingTableBytes);
static_assert(kReadHead + limits::kRank * kDimensionBytes < limits::kBindingTableBytes);
static_assert(kReorderHead + limits::kRows * kSmallBytes < limits::kBindingTableBytes);

Error malformed(std::string_view what) {
  return {ErrorCode::kMalformed, std::string(what)};
}
Error over_limit(std::string_view what, uint64_t value, uint64_t limit) {
  return {ErrorCode::kLimitExceeded,
          fmt::format("The binding's {} is {}; the limit is {}.", what, value, limit)};
}

Status at_most(uint64_t value, uint64_t limit, std::string_view what) {
  if (value > limit) return over_limit(what, value, limit);
  return {};
}

// --- writing

class Writer {
 public:
  // `bytes` is the size of the whole block.
  explicit Writer(size_t bytes) : bytes_(bytes) { out_.reserve(bytes); }

  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    const size_t at = out_.size();
    out_.resize(at + sizeof value);
    memcpy(out_.data() + at, &value, sizeof value);
  }
  // Puts a 32-bit array element, padded to 8 bytes.
  template <typename T>
  void put_small(T value) {
    static_assert(sizeof value == 4);
    put(value);
    put(uint32_t{0});
  }
  template <typename Tag>
  void put(Handle<Tag> handle) {
    put(handle.index);
    put(handle.generation);
  }
  void put(const StagingRange& range) {
    put(range.offset);
    put(range.bytes);
  }

  [[nodiscard]] std::vector<std::byte> finish() && {
    DJINN_ASSERT(out_.size() == bytes_);
    return std::move(out_);
  }

 private:
  size_t bytes_;
  std::vector<std::byte> out_;
};

// Puts the two words that say where bytes come from or go to: a staging range, or a ref and zero.
void put_place(Writer& writer, bool is_ref, RefHandle ref, const StagingRange& staging) {
  if (is_ref) {
    writer.put(ref);
    writer.put(uint64_t{0});
  } else {
    writer.put(staging);
  }
}

void put_input(Writer& writer, const InputBinding& input) {
  writer.put(input.storage);
  writer.put(static_cast<uint32_t>(input.kind));
  put_place(writer, input.kind == InputKind::kRef, input.ref, input.staging);
}

void put_output(Writer& writer, const OutputBinding& output) {
  writer.put_small(static_cast<uint32_t>(output.kind));
  const StagingRange staging = output.kind == OutputKind::kNone ? StagingRange{} : output.staging;
  put_place(writer, output.kind == OutputKind::kRef, output.ref, staging);
}

// --- reading

// Takes numbers from the front. The caller has checked, by the byte counts of begin() and
// expect_arrays(), that they are there.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Status begin(size_t head_bytes) {
    head_bytes_ = head_bytes;
    DJINN_CHECK(at_most(bytes_.size(), limits::kBindingTableBytes, "size in bytes"));
    if (bytes_.size() < head_bytes) return malformed("The binding is shorter than its head.");
    return {};
  }
  // This is called after the head is taken: exactly this many bytes must be left.
  Status expect_arrays(uint64_t bytes) const {
    DJINN_ASSERT(at_ == head_bytes_);
    if (bytes_.size() - at_ == bytes) return {};
    return malformed(fmt::format("The binding has {} bytes behind its head; its counts say {}.",
                                 bytes_.size() - at_, bytes));
  }

  template <typename T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    DJINN_ASSERT(bytes_.size() - at_ >= sizeof(T));
    T value;
    memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  template <typename HandleType>
  HandleType take_handle() {
    HandleType handle;
    handle.index = take<uint32_t>();
    handle.generation = take<uint32_t>();
    return handle;
  }
  StagingRange take_range() {
    StagingRange range;
    range.offset = take<uint64_t>();
    range.bytes = take<uint64_t>();
    return range;
  }

  // The arrays have been taken, and nothing may be left.
  void finish() const { DJINN_ASSERT(at_ == bytes_.size()); }

  // A field that a later version may use must be zero in this one.
  template <typename T>
  Status take_reserved() {
    if (take<T>() != 0) return malformed("A reserved field of the binding is not zero.");
    return {};
  }
  template <typename T>
  Result<T> take_small() {
    const T value = take<T>();
    DJINN_CHECK(take_reserved<uint32_t>());
    return value;
  }
  Result<float> take_finite(std::string_view what) {
    const float value = take<float>();
    if (!std::isfinite(value)) return malformed(fmt::format("{} is not a finite number.", what));
    return value;
  }
  Result<RefHandle> take_ref() {
    const auto ref = take_handle<RefHandle>();
    if (!ref.valid()) return malformed("A ref of the binding has generation 0.");
    if (ref.index >= limits::kRefs) return over_limit("ref index", ref.index, limits::kRefs - 1);
    return ref;
  }
  Result<SequenceHandle> take_sequence() {
    const auto sequence = take_handle<SequenceHandle>();
    if (!sequence.valid()) return malformed("The sequence group of the binding has generation 0.");
    DJINN_CHECK(at_most(sequence.index, limits::kSequences - 1, "sequence group index"));
    return sequence;
  }
  // A handle of zeros means that there is none.
  Result<SequenceHandle> take_optional_sequence() {
    Reader ahead = *this;
    const auto sequence = ahead.take_handle<SequenceHandle>();
    if (sequence != SequenceHandle{}) return take_sequence();
    *this = ahead;
    return sequence;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t head_bytes_ = 0;
  size_t at_ = 0;
};

Result<InputBinding> take_input(Reader& reader) {
  InputBinding input;
  input.storage = reader.take<uint32_t>();
  const auto kind = reader.take<uint32_t>();
  if (kind == static_cast<uint32_t>(InputKind::kStaging)) {
    input.kind = InputKind::kStaging;
    input.staging = reader.take_range();
  } else if (kind == static_cast<uint32_t>(InputKind::kRef)) {
    input.kind = InputKind::kRef;
    DJINN_TRY(input.ref, reader.take_ref());
    DJINN_CHECK(reader.take_reserved<uint64_t>());
  } else {
    return malformed(fmt::format("An input of the binding has the unknown kind {}.", kind));
  }
  return input;
}

Result<OutputBinding> take_output(Reader& reader) {
  OutputBinding output;
  DJINN_TRY(const uint32_t kind, reader.take_small<uint32_t>());
  if (kind == static_cast<uint32_t>(OutputKind::kNone)) {
    DJINN_CHECK(reader.take_reserved<uint64_t>());
    DJINN_CHECK(reader.take_reserved<uint64_t>());
  } else if (kind == static_cast<uint32_t>(OutputKind::kStaging)) {
    output.kind = OutputKind::kStaging;
    output.staging = reader.take_range();
  } else if (kind == static_cast<uint32_t>(OutputKind::kRef)) {
    output.kind = OutputKind::kRef;
    DJINN_TRY(output.ref, reader.take_ref());
    DJINN_CHECK(reader.take_reserved<uint64_t>());
  } else {
    return malformed(fmt::format("An output of the binding has the unknown kind {}.", kind));
  }
  return output;
}

// Takes the part of a generation's head that says how to draw.
Status take_sampling(Reader& reader, GenerateBlock& block) {
  const auto greedy = reader.take<uint32_t>();
  if (greedy > 1) return malformed("The binding's greedy flag is neither 0 nor 1.");
  block.greedy = greedy == 1;
  DJINN_TRY(block.temperature, reader.take_finite("temperature"));
  block.top_k = reader.take<uint32_t>();
  DJINN_TRY(block.top_p, reader.take_finite("top_p"));
  DJINN_TRY(block.min_p, reader.take_finite("min_p"));
  DJINN_TRY(block.repetition_penalty, reader.take_finite("repetition_penalty"));
  block.seed = reader.take<uint64_t>();
  block.random_offset = reader.take<uint64_t>();
  return {};
}

Status check_lengths(const GenerateBlock& block) {
  if (block.prefill == 0 || block.decode == 0) {
    return malformed("A generation needs a prefill and a decode program.");
  }
  if (block.rows == 0) return malformed("A generation needs at least one row.");
  DJINN_CHECK(at_most(block.rows, limits::kRows, "number of rows"));
  DJINN_CHECK(at_most(block.prompt_tokens, limits::kSequenceTokens, "number of prompt tokens"));
  DJINN_CHECK(at_most(block.max_new_tokens, limits::kSequenceTokens, "number of new tokens"));
  if (block.min_new_tokens > block.max_new_tokens) {
    return malformed("A generation's least number of new tokens is above its largest.");
  }
  return {};
}

size_t inputs_of(const GenerateBlock& block) {
  return block.prefill_inputs.size() + block.decode_inputs.size() + block.late_inputs.size() +
         block.extend_inputs.size();
}

// Staging is refused, because the client could change it between two tokens. A ref changes only
// with steps of its own.
Status take_refs(Reader& reader, uint64_t count, std::vector<InputBinding>& inputs) {
  inputs.resize(count);
  for (InputBinding& input : inputs) {
    DJINN_TRY(input, take_input(reader));
    if (input.kind != InputKind::kRef) {
      return malformed("A generation reads refs only, beside its sequence group.");
    }
  }
  return {};
}

Status take_padding(Reader& reader, GenerateBlock& block) {
  block.padding.resize(block.rows);
  for (uint32_t& padding : block.padding) {
    DJINN_TRY(padding, reader.take_small<uint32_t>());
    if (padding > block.prompt_tokens) return malformed("A row's padding exceeds the prompt.");
  }
  return {};
}

}  // namespace

// --- kRun

std::vector<std::byte> encode(const RunBlock& block) {
  Writer writer(kRunHead + block.symbols.size() * kSymbolBytes + block.inputs.size() * kInputBytes +
                block.outputs.size() * kOutputBytes + block.padding.size() * kSmallBytes);
  writer.put(block.sequence);
  writer.put(block.result);
  writer.put(static_cast<uint32_t>(block.symbols.size()));
  writer.put(static_cast<uint32_t>(block.inputs.size()));
  writer.put(static_cast<uint32_t>(block.outputs.size()));
  writer.put(static_cast<uint32_t>(block.padding.size()));
  for (const int64_t symbol : block.symbols) writer.put(symbol);
  for (const InputBinding& input : block.inputs) put_input(writer, input);
  for (const OutputBinding& output : block.outputs) put_output(writer, output);
  for (const uint32_t padding : block.padding) writer.put_small(padding);
  return std::move(writer).finish();
}

Result<RunBlock> decode_run(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  DJINN_CHECK(reader.begin(kRunHead));
  RunBlock block;
  DJINN_TRY(block.sequence, reader.take_optional_sequence());
  block.result = reader.take_range();
  const uint64_t symbols = reader.take<uint32_t>();
  const uint64_t inputs = reader.take<uint32_t>();
  const uint64_t outputs = reader.take<uint32_t>();
  const uint64_t padding = reader.take<uint32_t>();
  DJINN_CHECK(at_most(symbols, limits::kSymbols, "number of symbols"));
  DJINN_CHECK(at_most(padding, limits::kRows, "number of padded rows"));
  // Counts are 32 bits wide, so the sum can't overflow; that it is met bounds them by the size.
  DJINN_CHECK(reader.expect_arrays(symbols * kSymbolBytes + inputs * kInputBytes +
                                   outputs * kOutputBytes + padding * kSmallBytes));
  block.symbols.resize(symbols);
  for (int64_t& symbol : block.symbols) symbol = reader.take<int64_t>();
  block.inputs.resize(inputs);
  for (InputBinding& input : block.inputs) {
    DJINN_TRY(input, take_input(reader));
  }
  block.outputs.resize(outputs);
  for (OutputBinding& output : block.outputs) {
    DJINN_TRY(output, take_output(reader));
  }
  block.padding.resize(padding);
  for (uint32_t& row : block.padding) {
    DJINN_TRY(row, reader.take_small<uint32_t>());
  }
  reader.finish();
  return block;
}

// --- descriptions

namespace {

// Gives the bytes of the elements; nothing if these, or the place of the last element, do not fit
// 63 bits.
std::optional<uint64_t> checked_bytes_of(const OutputDescription& out) {
  const int64_t item = static_cast<int64_t>(size_of(static_cast<DType>(out.dtype)));
  if (item == 0 || out.rank > limits::kRank || out.offset > INT64_MAX) return std::nullopt;
  const auto sizes = std::span(out.sizes).first(out.rank);
  const auto strides = std::span(out.strides).first(out.rank);
  const auto is_negative = [](int64_t number) { return number < 0; };
  if (std::ranges::any_of(sizes, is_negative) || std::ranges::any_of(strides, is_negative)) {
    return std::nullopt;
  }
  int64_t bytes = item;  // if there were one element at least in each dimension, as numpy counts
  auto last = static_cast<int64_t>(out.offset);
  for (size_t d = 0; d < out.rank; ++d) {
    const int64_t size = std::max<int64_t>(sizes[d], 1);
    const auto way = checked_mul(size - 1, strides[d]);
    const auto more = checked_mul(bytes, size);
    const auto further = way ? checked_add(last, *way) : std::nullopt;
    if (!more || !further) return std::nullopt;
    bytes = *more;
    last = *further;
  }
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  return is_empty ? 0 : static_cast<uint64_t>(bytes);
}

}  // namespace

Error output_cannot_be() {
  return {ErrorCode::kMalformed,
          "What the session's memory says of an output cannot be: somebody has written to it."};
}

Result<OutputDescription> decode_description(std::span<const std::byte> result, size_t index) {
  DJINN_ASSERT(index < result.size() / sizeof(OutputDescription));
  OutputDescription out;
  std::memcpy(&out, result.data() + index * sizeof out, sizeof out);
  if (!checked_bytes_of(out)) return output_cannot_be();
  return out;
}

uint64_t bytes_of(const OutputDescription& description) {
  const auto bytes = checked_bytes_of(description);
  DJINN_ASSERT(bytes.has_value());
  return *bytes;
}

// --- kGenerate

std::vector<std::byte> encode(const GenerateBlock& block) {
  DJINN_ASSERT(block.padding.size() == block.rows);
  Writer writer(kGenerateHead + (block.rows + block.stop_tokens.size()) * kSmallBytes +
                inputs_of(block) * kInputBytes + block.symbols.size() * kSymbolBytes);
  writer.put(block.prefill);
  writer.put(block.decode);
  writer.put(block.late_decode);
  writer.put(block.late_from);
  writer.put(block.sequence);
  writer.put(block.rows);
  writer.put(block.prompt_tokens);
  writer.put(block.prompt);
  writer.put(block.min_new_tokens);
  writer.put(block.max_new_tokens);
  writer.put(static_cast<uint32_t>(block.stop_tokens.size()));
  writer.put(block.pad_token);
  writer.put(uint32_t{block.greedy});
  writer.put(block.temperature);
  writer.put(block.top_k);
  writer.put(block.top_p);
  writer.put(block.min_p);
  writer.put(block.repetition_penalty);
  writer.put(block.seed);
  writer.put(block.random_offset);
  writer.put(static_cast<uint32_t>(block.prefill_inputs.size()));
  writer.put(static_cast<uint32_t>(block.decode_inputs.size()));
  writer.put(static_cast<uint32_t>(block.late_inputs.size()));
  writer.put(static_cast<uint32_t>(block.symbols.size()));
  writer.put(block.extend);
  writer.put_small(static_cast<uint32_t>(block.extend_inputs.size()));
  for (const uint32_t padding : block.padding) writer.put_small(padding);
  for (const int32_t token : block.stop_tokens) writer.put_small(token);
  for (const InputBinding& input : block.prefill_inputs) put_input(writer, input);
  for (const InputBinding& input : block.decode_inputs) put_input(writer, input);
  for (const InputBinding& input : block.late_inputs) put_input(writer, input);
  for (const InputBinding& input : block.extend_inputs) put_input(writer, input);
  for (const int64_t symbol : block.symbols) writer.put(symbol);
  return std::move(writer).finish();
}

Result<GenerateBlock> decode_generate(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  DJINN_CHECK(reader.begin(kGenerateHead));
  GenerateBlock block;
  block.prefill = reader.take<uint64_t>();
  block.decode = reader.take<uint64_t>();
  block.late_decode = reader.take<uint64_t>();
  block.late_from = reader.take<uint64_t>();
  DJINN_TRY(block.sequence, reader.take_sequence());
  block.rows = reader.take<uint32_t>();
  block.prompt_tokens = reader.take<uint32_t>();
  block.prompt = reader.take_range();
  block.min_new_tokens = reader.take<uint32_t>();
  block.max_new_tokens = reader.take<uint32_t>();
  const uint64_t stop_tokens = reader.take<uint32_t>();
  block.pad_token = reader.take<int32_t>();
  DJINN_CHECK(take_sampling(reader, block));
  DJINN_CHECK(check_lengths(block));
  DJINN_CHECK(at_most(stop_tokens, limits::kStopTokens, "number of stop tokens"));
  const uint64_t prefill_inputs = reader.take<uint32_t>();
  const uint64_t decode_inputs = reader.take<uint32_t>();
  const uint64_t late_inputs = reader.take<uint32_t>();
  const uint64_t symbols = reader.take<uint32_t>();
  DJINN_CHECK(at_most(symbols, limits::kSymbols, "number of symbols"));
  block.extend = reader.take<uint64_t>();
  DJINN_TRY(const uint64_t extend_inputs, reader.take_small<uint32_t>());
  const uint64_t inputs = prefill_inputs + decode_inputs + late_inputs + extend_inputs;
  DJINN_CHECK(reader.expect_arrays((block.rows + stop_tokens) * kSmallBytes + inputs * kInputBytes +
                                   symbols * kSymbolBytes));
  DJINN_CHECK(take_padding(reader, block));
  block.stop_tokens.resize(stop_tokens);
  for (int32_t& token : block.stop_tokens) {
    DJINN_TRY(token, reader.take_small<int32_t>());
  }
  DJINN_CHECK(take_refs(reader, prefill_inputs, block.prefill_inputs));
  DJINN_CHECK(take_refs(reader, decode_inputs, block.decode_inputs));
  DJINN_CHECK(take_refs(reader, late_inputs, block.late_inputs));
  DJINN_CHECK(take_refs(reader, extend_inputs, block.extend_inputs));
  block.symbols.resize(symbols);
  for (int64_t& symbol : block.symbols) symbol = reader.take<int64_t>();
  reader.finish();
  return block;
}

// --- kReadRef, kWriteRef, kReleaseRefs

std::vector<std::byte> encode(const ReadBlock& block) {
  DJINN_ASSERT(block.sizes.size() == block.strides.size());
  Writer writer(kReadHead + block.sizes.size() * kDimensionBytes);
  writer.put(block.ref);
  writer.put(static_cast<uint32_t>(block.dtype));
  writer.put(static_cast<uint32_t>(block.sizes.size()));
  writer.put(block.offset);
  writer.put(block.staging);
  for (const uint64_t size : block.sizes) writer.put(size);
  for (const int64_t stride : block.strides) writer.put(stride);
  return std::move(writer).finish();
}

Result<ReadBlock> decode_read(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  DJINN_CHECK(reader.begin(kReadHead));
  ReadBlock block;
  DJINN_TRY(block.ref, reader.take_ref());
  const auto dtype = reader.take<uint32_t>();
  const uint64_t rank = reader.take<uint32_t>();
  block.offset = reader.take<uint64_t>();
  block.staging = reader.take_range();
  block.dtype = static_cast<DType>(dtype);
  if (dtype > UINT8_MAX || size_of(block.dtype) == 0) {
    return malformed(fmt::format("The binding names the unknown dtype {}.", dtype));
  }
  DJINN_CHECK(at_most(rank, limits::kRank, "rank"));
  DJINN_CHECK(reader.expect_arrays(rank * kDimensionBytes));
  block.sizes.resize(rank);
  for (uint64_t& size : block.sizes) size = reader.take<uint64_t>();
  block.strides.resize(rank);
  for (int64_t& stride : block.strides) stride = reader.take<int64_t>();
  reader.finish();
  return block;
}

std::vector<std::byte> encode(const WriteBlock& block) {
  Writer writer(kWriteHead);
  writer.put(block.ref);
  writer.put(block.staging);
  writer.put(block.offset);
  writer.put(block.bytes);
  return std::move(writer).finish();
}

Result<WriteBlock> decode_write(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  DJINN_CHECK(reader.begin(kWriteHead));
  WriteBlock block;
  DJINN_TRY(block.ref, reader.take_ref());
  block.staging = reader.take_range();
  block.offset = reader.take<uint64_t>();
  block.bytes = reader.take<uint64_t>();
  DJINN_CHECK(reader.expect_arrays(0));
  reader.finish();
  return block;
}

std::vector<std::byte> encode(const ReleaseBlock& block) {
  Writer writer(kReleaseHead + block.refs.size() * kRefBytes);
  writer.put_small(static_cast<uint32_t>(block.refs.size()));
  for (const RefHandle ref : block.refs) writer.put(ref);
  return std::move(writer).finish();
}

Result<ReleaseBlock> decode_release(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  DJINN_CHECK(reader.begin(kReleaseHead));
  DJINN_TRY(const uint64_t refs, reader.take_small<uint32_t>());
  DJINN_CHECK(at_most(refs, limits::kRefs, "number of refs"));
  DJINN_CHECK(reader.expect_arrays(refs * kRefBytes));
  ReleaseBlock block;
  block.refs.resize(refs);
  for (RefHandle& ref : block.refs) {
    DJINN_TRY(ref, reader.take_ref());
  }
  reader.finish();
  return block;
}

// --- kCropSequence, kReorderSequence

std::vector<std::byte> encode(const CropBlock& block) {
  Writer writer(kCropHead);
  writer.put(block.sequence);
  writer.put(block.length);
  return std::move(writer).finish();
}

Result<CropBlock> decode_crop(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  DJINN_CHECK(reader.begin(kCropHead));
  CropBlock block;
  DJINN_TRY(block.sequence, reader.take_sequence());
  block.length = reader.take<uint64_t>();
  DJINN_CHECK(at_most(block.length, limits::kSequenceTokens, "length in tokens"));
  DJINN_CHECK(reader.expect_arrays(0));
  reader.finish();
  return block;
}

std::vector<std::byte> encode(const ReorderBlock& block) {
  Writer writer(kReorderHead + block.rows.size() * kSmallBytes);
  writer.put(block.sequence);
  writer.put_small(static_cast<uint32_t>(block.rows.size()));
  for (const uint32_t row : block.rows) writer.put_small(row);
  return std::move(writer).finish();
}

Result<ReorderBlock> decode_reorder(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  DJINN_CHECK(reader.begin(kReorderHead));
  ReorderBlock block;
  DJINN_TRY(block.sequence, reader.take_sequence());
  DJINN_TRY(const uint64_t rows, reader.take_small<uint32_t>());
  if (rows == 0) return malformed("A reorder needs at least one row.");
  DJINN_CHECK(at_most(rows, limits::kRows, "number of rows"));
  DJINN_CHECK(reader.expect_arrays(rows * kSmallBytes));
  block.rows.resize(rows);
  for (uint32_t& row : block.rows) {
    DJINN_TRY(row, reader.take_small<uint32_t>());
    if (row >= rows) return malformed("A reorder names a row that the group doesn't have.");
  }
  reader.finish();
  return block;
}

namespace {

Result<StagingUse> use_of_run(std::span<const std::byte> block) {
  DJINN_TRY(const RunBlock run, decode_run(block));
  StagingUse use;
  for (const InputBinding& input : run.inputs) {
    if (input.kind == InputKind::kStaging) use.read.push_back(input.staging);
  }
  for (const OutputBinding& output : run.outputs) {
    if (output.kind == OutputKind::kStaging) use.written.push_back(output.staging);
  }
  if (run.result.bytes != 0) use.written.push_back(run.result);
  return use;
}

}  // namespace

Result<StagingUse> staging_of(const Submission& submission, std::span<const std::byte> block) {
  switch (static_cast<Operation>(submission.operation)) {
    case Operation::kRun:
      return use_of_run(block);
    case Operation::kRunOnce: {
      DJINN_TRY(StagingUse use, use_of_run(block));
      use.read.push_back({submission.graph_offset, submission.graph_bytes});
      return use;
    }
    case Operation::kGenerate: {
      DJINN_TRY(const GenerateBlock generate, decode_generate(block));
      return StagingUse{{generate.prompt}, {}};
    }
    case Operation::kReadRef: {
      DJINN_TRY(const ReadBlock read, decode_read(block));
      return StagingUse{{}, {read.staging}};
    }
    case Operation::kWriteRef: {
      DJINN_TRY(const WriteBlock write, decode_write(block));
      return StagingUse{{write.staging}, {}};
    }
    case Operation::kNop:
    case Operation::kReleaseRefs:
    case Operation::kCropSequence:
    case Operation::kReorderSequence:
      return StagingUse{};
  }
  return Error{ErrorCode::kUnsupported, "There is no such operation."};
}

}  // namespace djinn::ipc
