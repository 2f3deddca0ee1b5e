// SPDX-License-Identifier: Apache-2.0

// Record: what a name stands for: the files of a model by their digests, who published it, and who
// may read it. It is text, one line each, written whole, with a sum of itself at its end: a record
// of which one digit has changed would lead to another blob, and garbage collection would remove
// the right one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/store/digest.h"
#include "daemon/store/name.h"
#include "daemon/store/reader.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::store {

inline constexpr size_t kFilesMax = 4096;  // of one name; sharded weights have some hundred
inline constexpr size_t kReadersMax = 64;  // and as many aliases: each is a line of the record
inline constexpr size_t kFileNameBytesMax = 128;
inline constexpr size_t kAliasBytesMax = 256;
inline constexpr uint64_t kRecordBytesMax = uint64_t{2} << 20;
// Of a file that has no weights: configuration, tokenizer, index.
inline constexpr uint64_t kSmallFileBytesMax = uint64_t{64} << 20;
inline constexpr uint64_t kFileBytesMax = uint64_t{1} << 46;

struct File {
  std::string name;  // in the model's directory, which has no others
  Digest digest{};
  uint64_t bytes = 0;
  friend bool operator==(const File&, const File&) = default;
};

struct Record {
  Name name;
  Owner owner;
  uint64_t since_s = 0;  // since the epoch
  std::vector<Reader> readers{};
  std::vector<std::string> aliases{};  // like hf:ORG/REPO@COMMIT
  std::vector<File> files{};

  [[nodiscard]] bool may_read(const Asker& asker) const;
  friend bool operator==(const Record&, const Record&) = default;
};

// A file that a store takes in: weights as safetensors, and what stands beside them as text, of
// which nothing is executed. Errors: kInvalidArgument, kLimitExceeded.
Status check_file(std::string_view name, uint64_t bytes);
// All of what a record may say. Errors: as check_file().
Status check(const Record& record);

Result<std::string> text_of(const Record& record);
// Errors: kMalformed. name: whose record it is.
Result<Record> record_of(std::string_view text, const Name& name);
// Of the files' names, digests and sizes: two names with equal ones stand for the same bytes.
Result<Digest> contents_of(const Record& record);

}  // namespace djinn::store
