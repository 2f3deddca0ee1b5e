// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "kernel/base/checked.h"
#include "kernel/base/text.h"

namespace djinn::load {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr uint32_t kDepthMax = 128;  // serde_json's recursion limit

Error malformed(std::string why) {
  return {ErrorCode::kMalformed, "This is not a valid safetensors file: " + why + "."};
}

// Makes the error for a file that a broken download may have left.
Error cut_short(uint64_t file_bytes, uint64_t needed_bytes) {
  return malformed("it is cut short, with " + std::to_string(file_bytes) + " of " +
                   std::to_string(needed_bytes) + " bytes. Fetch or copy it anew");
}

Error too_many(std::string what, uint64_t limit) {
  return {ErrorCode::kLimitExceeded,
          "The safetensors file has " + what + " than the limit of " + std::to_string(limit) + "."};
}

struct DTypeName {
  std::string_view name;
  DType dtype;
};

constexpr std::array<DTypeName, 16> kDTypeNames{{
    {"BOOL", DType::kBool},
    {"U8", DType::kUInt8},
    {"I8", DType::kInt8},
    {"F8_E5M2", DType::kFloat8E5M2},
    {"F8_E4M3", DType::kFloat8E4M3},
    {"I16", DType::kInt16},
    {"U16", DType::kUInt16},
    {"F16", DType::kFloat16},
    {"BF16", DType::kBFloat16},
    {"I32", DType::kInt32},
    {"U32", DType::kUInt32},
    {"F32", DType::kFloat32},
    {"F64", DType::kFloat64},
    {"I64", DType::kInt64},
    {"U64", DType::kUInt64},
    {"C64", DType::kComplex64},
}};

std::optional<DType> dtype_of(std::string_view name) {
  for (const DTypeName& row : kDTypeNames) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

// Receives the JSON events of a header. To stop, a handler sets error_ and returns false.
class HeaderHandler {
 public:
  // This is nlohmann's SAX interface. It calls these by name, and its signatures take references.
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  bool null();
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(number_integer_t) { return scalar("a negative number"); }
  bool number_unsigned(number_unsigned_t value);
  bool number_float(number_float_t, const string_t&) { return scalar("a number with a fraction"); }
  bool string(string_t& text);
  bool binary(binary_t&) { return scalar("binary data"); }
  bool start_object(size_t);
  bool key(string_t& name);
  bool end_object();
  bool start_array(size_t);
  bool end_array();
  template <typename Exception>
  bool parse_error(size_t position, const std::string&, const Exception&) {
    return stop(malformed("its header is not JSON at byte " + std::to_string(position)));
  }

  [[nodiscard]] std::optional<Error>& error() { return error_; }
  [[nodiscard]] std::vector<TensorRecord>& tensors() { return tensors_; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>>& metadata() { return metadata_; }

 private:
  // This says what the next value belongs to.
  enum class At {
    kRoot,
    kTop,
    kMetadataValue,
    kMetadata,
    kTensorValue,
    kTensor,
    kDType,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kUnknownField,
    kDone
  };
  enum Field : uint32_t { kHasDType = 1, kHasShape = 2, kHasOffsets = 4, kHasAll = 7 };

  bool stop(Error error) {
    error_ = std::move(error);
    return false;
  }
  bool scalar(std::string_view what);
  bool unexpected(std::string_view what);
  bool deeper();
  bool top_key(string_t& name);
  bool tensor_key(std::string_view name);
  bool enter_field(Field field, At next);
  bool tensor_dtype(std::string_view name);
  bool finish_tensor();

  At at_ = At::kRoot;
  uint32_t skipped_depth_ = 0;  // open containers of an unknown field
  uint32_t fields_ = 0;         // of the present tensor
  bool metadata_seen_ = false;
  uint32_t offsets_count_ = 0;
  uint64_t offsets_end_ = 0;
  std::vector<TensorRecord> tensors_;  // offset and bytes as the header states them, until checked
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::optional<Error> error_;
};

bool HeaderHandler::unexpected(std::string_view what) {
  std::string where = "its header";
  if (at_ >= At::kTensorValue && at_ < At::kDone) where = quote_name(tensors_.back().name);
  if (at_ == At::kMetadata || at_ == At::kMetadataValue) where = "its metadata";
  return stop(malformed(where + " has " + std::string(what) + " where none belongs"));
}

bool HeaderHandler::scalar(std::string_view what) {
  if (at_ != At::kUnknownField) return unexpected(what);
  if (skipped_depth_ == 0) at_ = At::kTensor;
  return true;
}

bool HeaderHandler::deeper() {
  if (++skipped_depth_ > kDepthMax) return stop(malformed("its header is nested too deeply"));
  return true;
}

bool HeaderHandler::null() {
  if (at_ != At::kMetadataValue) return scalar("null");
  at_ = At::kTop;
  return true;
}

bool HeaderHandler::number_unsigned(number_unsigned_t value) {
  if (at_ == At::kShape) {
    auto& sizes = tensors_.back().sizes;
    if (sizes.size() == kRankMax) return stop(too_many("a tensor of more dimensions", kRankMax));
    sizes.push_back(value);
    return true;
  }
  if (at_ != At::kOffsets) return scalar("a number");
  if (offsets_count_ == 2) return unexpected("a third data offset");
  (offsets_count_++ == 0 ? tensors_.back().offset : offsets_end_) = value;
  return true;
}

bool HeaderHandler::string(string_t& text) {
  if (at_ == At::kMetadata) {
    metadata_.back().second = std::move(text);
    return true;
  }
  if (at_ == At::kDType) return tensor_dtype(text);
  return scalar("a string");
}

bool HeaderHandler::tensor_dtype(std::string_view name) {
  const auto dtype = dtype_of(name);
  if (!dtype) {
    return stop({ErrorCode::kUnsupported, "The tensor " + quote_name(tensors_.back().name) +
                                              " has the dtype " + quote_name(name) +
                                              ", which is not offered."});
  }
  tensors_.back().dtype = *dtype;
  at_ = At::kTensor;
  return true;
}

bool HeaderHandler::start_object(size_t) {
  switch (at_) {
    case At::kRoot:
      at_ = At::kTop;
      return true;
    case At::kMetadataValue:
      at_ = At::kMetadata;
      return true;
    case At::kTensorValue:
      at_ = At::kTensor;
      return true;
    case At::kUnknownField:
      return deeper();
    default:
      return unexpected("an object");
  }
}

bool HeaderHandler::key(string_t& name) {
  switch (at_) {
    case At::kTop:
      return top_key(name);
    case At::kMetadata:
      if (metadata_.size() == kMetadataMax) return stop(too_many("more metadata", kMetadataMax));
      metadata_.emplace_back(std::move(name), std::string());
      return true;
    case At::kTensor:
      return tensor_key(name);
    default:
      return true;  // inside an unknown field
  }
}

bool HeaderHandler::top_key(string_t& name) {
  if (name == kMetadataKey) {
    if (std::exchange(metadata_seen_, true)) return stop(malformed("its metadata occurs twice"));
    at_ = At::kMetadataValue;
    return true;
  }
  if (tensors_.size() == kTensorsMax) return stop(too_many("more tensors", kTensorsMax));
  if (has_control_characters(name)) {
    return stop(malformed("the name of a tensor holds control characters"));
  }
  tensors_.emplace_back().name = std::move(name);
  fields_ = 0;
  at_ = At::kTensorValue;
  return true;
}

bool HeaderHandler::tensor_key(std::string_view name) {
  if (name == "dtype") return enter_field(kHasDType, At::kDType);
  if (name == "shape") return enter_field(kHasShape, At::kShapeValue);
  if (name == "data_offsets") return enter_field(kHasOffsets, At::kOffsetsValue);
  at_ = At::kUnknownField;
  return true;
}

bool HeaderHandler::enter_field(Field field, At next) {
  if ((fields_ & field) != 0) {
    return stop(malformed("a field of " + quote_name(tensors_.back().name) + " occurs twice"));
  }
  fields_ |= field;
  at_ = next;
  return true;
}

bool HeaderHandler::end_object() {
  switch (at_) {
    case At::kTop:
      at_ = At::kDone;
      return true;
    case At::kMetadata:
      at_ = At::kTop;
      return true;
    case At::kTensor:
      return finish_tensor();
    default:
      break;
  }
  DJINN_ASSERT(at_ == At::kUnknownField && skipped_depth_ > 0);
  if (--skipped_depth_ == 0) at_ = At::kTensor;
  return true;
}

bool HeaderHandler::finish_tensor() {
  TensorRecord& tensor = tensors_.back();
  if (fields_ != kHasAll) {
    return stop(malformed(quote_name(tensor.name) + " lacks its dtype, shape or data offsets"));
  }
  if (tensor.offset > offsets_end_) {
    return stop(malformed(quote_name(tensor.name) + " ends before it begins"));
  }
  tensor.bytes = offsets_end_ - tensor.offset;
  at_ = At::kTop;
  return true;
}

bool HeaderHandler::start_array(size_t) {
  switch (at_) {
    case At::kShapeValue:
      at_ = At::kShape;
      return true;
    case At::kOffsetsValue:
      offsets_count_ = 0;
      at_ = At::kOffsets;
      return true;
    case At::kUnknownField:
      return deeper();
    default:
      return unexpected("an array");
  }
}

bool HeaderHandler::end_array() {
  if (at_ == At::kUnknownField) {
    if (--skipped_depth_ == 0) at_ = At::kTensor;
    return true;
  }
  DJINN_ASSERT(at_ == At::kShape || at_ == At::kOffsets);
  if (at_ == At::kOffsets && offsets_count_ != 2) return unexpected("too few data offsets");
  at_ = At::kTensor;
  return true;
}

Status check_size(const TensorRecord& tensor) {
  const auto elements = checked_product(tensor.sizes);
  const auto bytes = elements ? checked_mul<uint64_t>(*elements, size_of(tensor.dtype))
                              : std::optional<uint64_t>();
  if (!bytes) {
    return Error{ErrorCode::kOutOfRange, "The shape of " + quote_name(tensor.name) + " overflows."};
  }
  if (*bytes == tensor.bytes) return {};
  return Error{ErrorCode::kShapeMismatch,
               quote_name(tensor.name) + " needs " + std::to_string(*bytes) +
                   " bytes by its shape and has " + std::to_string(tensor.bytes) + "."};
}

// Makes the error for tensors beyond the file's end. The tensors are in the order of their offsets,
// so the last one tells how long the file should be.
Error beyond_the_end(const SafetensorsIndex& index, uint64_t data_begin) {
  const TensorRecord& last = index.tensors.back();
  const auto needed = checked_add(data_begin, last.offset + last.bytes);
  if (!needed) return malformed(quote_name(last.name) + " lies beyond any file's end");
  return cut_short(index.file_bytes, *needed);
}

// Checks that the tensors tile the file from the header's end on, and makes their offsets absolute.
Status check_layout(SafetensorsIndex& index, uint64_t data_begin) {
  uint64_t end = 0;
  for (TensorRecord& tensor : index.tensors) {
    if (tensor.offset != end) {
      return malformed("a hole or an overlap lies before " + quote_name(tensor.name));
    }
    DJINN_CHECK(check_size(tensor));
    end = tensor.offset + tensor.bytes;  // was stated by the header: does not overflow
    if (end > index.file_bytes - data_begin) return beyond_the_end(index, data_begin);
    tensor.offset += data_begin;
  }
  if (end == index.file_bytes - data_begin) return {};
  return malformed("the file is longer than its tensors");
}

Status index_names(SafetensorsIndex& index) {
  const auto& tensors = index.tensors;
  index.by_name.resize(tensors.size());
  std::iota(index.by_name.begin(), index.by_name.end(), 0u);
  std::sort(index.by_name.begin(), index.by_name.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  const auto twin = std::adjacent_find(
      index.by_name.begin(), index.by_name.end(),
      [&](uint32_t a, uint32_t b) { return tensors[a].name == tensors[b].name; });
  if (twin == index.by_name.end()) return {};
  return malformed("the tensor " + quote_name(tensors[*twin].name) + " occurs twice");
}

Status sort_metadata(SafetensorsIndex& index) {
  auto& metadata = index.metadata;
  std::sort(metadata.begin(), metadata.end());
  const auto twin = std::adjacent_find(metadata.begin(), metadata.end(),
                                       [](auto& a, auto& b) { return a.first == b.first; });
  if (twin == metadata.end()) return {};
  return malformed("the metadata key " + quote_name(twin->first) + " occurs twice");
}

void sort_by_offset(std::vector<TensorRecord>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorRecord& a, const TensorRecord& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
}

Result<HeaderHandler> decode(std::string_view json) {
  if (json.empty() || json.front() != '{') return malformed("its header does not begin with '{'");
  // nlohmann would take a zero byte for the end of its input.
  if (json.find('\0') != json.npos) return malformed("its header contains a zero byte");
  HeaderHandler handler;
  const bool whole = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  if (handler.error()) return *std::move(handler.error());
  DJINN_ASSERT(whole);
  return handler;
}

}  // namespace

const TensorRecord* SafetensorsIndex::find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name.begin(), by_name.end(), name,
      [this](uint32_t at, std::string_view wanted) { return tensors[at].name < wanted; });
  if (found == by_name.end() || tensors[*found].name != name) return nullptr;
  return &tensors[*found];
}

Result<uint64_t> safetensors_header_bytes(std::span<const std::byte> first_bytes,
                                          uint64_t file_bytes) {
  if (file_bytes < kHeaderLengthBytes || first_bytes.size() < kHeaderLengthBytes) {
    return malformed("it is shorter than a header's length field");
  }
  uint64_t json_bytes = 0;
  for (size_t i = kHeaderLengthBytes; i-- > 0;) {
    json_bytes = json_bytes << 8 | static_cast<uint8_t>(first_bytes[i]);
  }
  const bool fits = json_bytes <= file_bytes - kHeaderLengthBytes;
  if (json_bytes > kHeaderBytesMax) {
    if (fits) return too_many("a header of more bytes", kHeaderBytesMax);
    return malformed("it does not begin as one. Perhaps it is a file of another format");
  }
  if (!fits) {
    return cut_short(file_bytes, kHeaderLengthBytes + json_bytes);
  }
  return kHeaderLengthBytes + json_bytes;
}

Result<SafetensorsIndex> parse_safetensors_header(std::span<const std::byte> first_bytes,
                                                  uint64_t file_bytes) {
  DJINN_TRY(const uint64_t header_bytes, safetensors_header_bytes(first_bytes, file_bytes));
  if (first_bytes.size() < header_bytes) return malformed("its header was not read to the end");
  const std::string_view json(
      reinterpret_cast<const char*>(first_bytes.data()) + kHeaderLengthBytes,
      header_bytes - kHeaderLengthBytes);
  DJINN_TRY(HeaderHandler handler, decode(json));

  SafetensorsIndex index;
  index.file_bytes = file_bytes;
  index.header_bytes = header_bytes;
  index.tensors = std::move(handler.tensors());
  index.metadata = std::move(handler.metadata());
  sort_by_offset(index.tensors);
  DJINN_CHECK(index_names(index));
  DJINN_CHECK(sort_metadata(index));
  DJINN_CHECK(check_layout(index, header_bytes));
  return index;
}

std::string quote_name(std::string_view name) {
  constexpr size_t kShownMax = 80;
  std::string text = "'";
  for (const char c : name.substr(0, kShownMax)) {
    const auto byte = static_cast<unsigned char>(c);
    // Bytes above ASCII are shown only in a name that is shown whole, because a cut could split a
    // character.
    const bool shown = byte >= 0x20 && byte != 0x7f && (byte < 0x80 || name.size() <= kShownMax);
    text.push_back(shown ? c : '?');
  }
  return text + (name.size() > kShownMax ? "…'" : "'");
}

}  // namespace djinn::load
