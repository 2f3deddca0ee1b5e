// SPDX-License-Identifier: Apache-2.0

// SequenceLayout: where the state of a sequence group lies in its memfd.
//
//   tokens    int32 [rows, capacity]: every token of the group, prompt and generated
//   K, V      for each layer, first K, then V: dtype [rows, kv_heads, capacity, head_dim]
//
// The file is sparse and committed ahead: growing a group by tokens commits, for each line (one row
// of tokens, or one row and head of a buffer), the pages of those token slots.
//
// invariant: every buffer begins on a page boundary.
// invariant: the ranges visited for [0, a) and [a, b) cover those of [0, b) and do not overlap
// within a line.
#pragma once

#include <cstdint>
#include <functional>

#include "kernel/base/result.h"

namespace djinn::gc {

class SequenceLayout {
 public:
  // element_bytes: of K and V. Errors: kInvalidArgument for zeros, kLimitExceeded on overflow.
  static Result<SequenceLayout> make(uint32_t rows, uint32_t layers, uint32_t kv_heads,
                                     uint32_t head_dim, uint32_t element_bytes, uint64_t capacity);

  [[nodiscard]] uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] uint64_t tokens_offset(uint32_t row) const;
  [[nodiscard]] uint64_t key_offset(uint32_t layer) const;
  [[nodiscard]] uint64_t value_offset(uint32_t layer) const;
  [[nodiscard]] uint64_t capacity() const { return capacity_; }
  [[nodiscard]] uint32_t rows() const { return rows_; }
  [[nodiscard]] uint32_t layers() const { return layers_; }

  using Visit = std::function<Status(uint64_t offset, uint64_t bytes)>;
  // Calls visit for each page-aligned file range that token slots [from, to) need beyond what slots
  // [0, from) of the same line did. Stops at the first error.
  Status for_each_range(uint64_t from, uint64_t to, const Visit& visit) const;
  // An upper bound of the bytes that slots [0, tokens) occupy, page rounding included.
  [[nodiscard]] uint64_t committed_bytes(uint64_t tokens) const;

 private:
  uint32_t rows_ = 0;
  uint32_t layers_ = 0;
  uint64_t lines_ = 0;       // rows * kv_heads: contiguous runs of token slots in one buffer
  uint64_t slot_bytes_ = 0;  // of one token in one line
  uint64_t capacity_ = 0;
  uint64_t token_bytes_ = 0;   // of the token area, in pages
  uint64_t buffer_bytes_ = 0;  // of one K or V, in pages
  uint64_t file_bytes_ = 0;
};

}  // namespace djinn::gc
