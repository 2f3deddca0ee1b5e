// SPDX-License-Identifier: Apache-2.0

// The safetensors header: what a file claims to hold, checked before anything trusts it.
//
//   header   8 bytes, little-endian: N. Then N bytes of JSON, then the tensors' bytes to the end.
//   index    the header, decoded: where each tensor's bytes lie in the file
//
// The rules are those of the reference implementation (huggingface/safetensors, Rust), and the
// stricter one of its format description where the two differ (the first byte, duplicate keys):
//
//   rule                                                       error when broken
//   N <= 100 MB                                                kLimitExceeded
//   8 + N <= file size; N bytes of UTF-8 JSON; first byte '{'  kMalformed
//   an object of objects; "__metadata__" maps to strings       kMalformed
//   dtype, shape, data_offsets present, once, right type       kMalformed
//   unsigned integers below 2^64, written as integers          kMalformed
//   no key twice: tensors, fields, metadata                    kMalformed
//   dtype of whole bytes that DType names                      kUnsupported
//   begin <= end; no holes, no overlap; last end == file size  kMalformed
//   product of shape and element size does not overflow        kOutOfRange
//   end - begin == that product                                kShapeMismatch
//   at most kRankMax dimensions, kTensorsMax tensors           kLimitExceeded
//   at most kMetadataMax entries of metadata                   kLimitExceeded
//   nesting at most 128 deep (fields we do not know)           kMalformed
//
// As in the reference, fields that it does not know are skipped, "__metadata__": null means none,
// JSON's white space may follow the object, tensors may come in any order and may be empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/base/dtype.h"
#include "kernel/base/result.h"

namespace djinn::load {

constexpr uint64_t kHeaderLengthBytes = 8;
constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the reference's MAX_HEADER_SIZE
constexpr uint32_t kRankMax = 64;                  // what PyTorch can hold
constexpr uint32_t kTensorsMax = 1'000'000;        // a file; ten times the largest model published
// An entry may have six bytes and takes ten times as much in memory; writers have a handful.
constexpr uint32_t kMetadataMax = 64 * 1024;

struct TensorRecord {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<uint64_t> sizes;
  uint64_t offset = 0;  // of its first byte in the file
  uint64_t bytes = 0;
  friend bool operator==(const TensorRecord&, const TensorRecord&) = default;
};

// invariant: tensors are sorted by offset, each begins where the one before ends, the first at the
// header's end, and the last ends at file_bytes; by_name is a permutation that sorts them by name.
struct SafetensorsIndex {
  std::vector<TensorRecord> tensors;
  std::vector<uint32_t> by_name;
  std::vector<std::pair<std::string, std::string>> metadata;  // sorted by key
  uint64_t file_bytes = 0;
  uint64_t header_bytes = 0;  // with its length

  // Null if the file has no tensor of that name.
  [[nodiscard]] const TensorRecord* find(std::string_view name) const;
};

// How many bytes of the file the header takes, its length included: what a caller must read to
// parse it. first_bytes: at least the first 8 of a file of file_bytes.
Result<uint64_t> safetensors_header_bytes(std::span<const std::byte> first_bytes,
                                          uint64_t file_bytes);

// Decodes the header. first_bytes: the file's beginning, at least to the header's end. Pure; any
// thread; memory and time are linear in the header.
Result<SafetensorsIndex> parse_safetensors_header(std::span<const std::byte> first_bytes,
                                                  uint64_t file_bytes);

// A name from a file, fit for a message: at most 80 bytes, without control characters.
std::string quote_name(std::string_view name);

}  // namespace djinn::load
