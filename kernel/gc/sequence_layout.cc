// SPDX-License-Identifier: Apache-2.0

#include "kernel/gc/sequence_layout.h"

#include <algorithm>
#include <array>

#include "kernel/base/checked.h"

namespace djinn::gc {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kTokenBytes = sizeof(int32_t);

Error too_large() {
  return {ErrorCode::kLimitExceeded,
          "The sequence group's size does not fit. Ask for fewer rows or a smaller capacity."};
}

uint64_t page_down(uint64_t at) {
  return at / kPage * kPage;
}
uint64_t page_up(uint64_t at) {
  return (at + kPage - 1) / kPage * kPage;
}

// Visits slots [from, to) of one line at `base`, widened to pages, without the pages that slots
// before `from` already needed.
Status visit_line(uint64_t base, uint64_t slot_bytes, uint64_t from, uint64_t to,
                  const SequenceLayout::Visit& visit) {
  const uint64_t begin = from == 0 ? page_down(base) : page_up(base + from * slot_bytes);
  const uint64_t end = page_up(base + to * slot_bytes);
  return begin < end ? visit(begin, end - begin) : Status{};
}

}  // namespace

Result<SequenceLayout> SequenceLayout::make(uint32_t rows, uint32_t layers, uint32_t kv_heads,
                                            uint32_t head_dim, uint32_t element_bytes,
                                            uint64_t capacity) {
  if (rows == 0 || layers == 0 || kv_heads == 0 || head_dim == 0 || element_bytes == 0 ||
      capacity == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "A sequence group needs rows, layers, heads, a head size and a capacity above 0."};
  }
  SequenceLayout layout;
  layout.rows_ = rows;
  layout.layers_ = layers;
  layout.capacity_ = capacity;
  layout.lines_ = uint64_t{rows} * kv_heads;
  layout.slot_bytes_ = uint64_t{head_dim} * element_bytes;
  const auto buffer =
      checked_product(std::array<uint64_t, 3>{layout.lines_, layout.slot_bytes_, capacity});
  const auto tokens = checked_product(std::array<uint64_t, 3>{rows, capacity, kTokenBytes});
  // One buffer of 2^40 bytes is more than any host has, and sums of such buffers stay far from
  // overflow.
  constexpr uint64_t kBufferBytesMax = uint64_t{1} << 40;
  if (!buffer || !tokens || *buffer > kBufferBytesMax || *tokens > kBufferBytesMax) {
    return too_large();
  }
  layout.buffer_bytes_ = page_up(*buffer);
  layout.token_bytes_ = page_up(*tokens);
  const auto buffers = checked_product(std::array<uint64_t, 3>{layout.buffer_bytes_, layers, 2});
  if (!buffers || *buffers > uint64_t{INT64_MAX} - layout.token_bytes_) return too_large();
  layout.file_bytes_ = layout.token_bytes_ + *buffers;
  return layout;
}

uint64_t SequenceLayout::tokens_offset(uint32_t row) const {
  DJINN_ASSERT(row < rows_);
  return row * capacity_ * kTokenBytes;
}
uint64_t SequenceLayout::key_offset(uint32_t layer) const {
  DJINN_ASSERT(layer < layers_);
  return token_bytes_ + 2 * uint64_t{layer} * buffer_bytes_;
}
uint64_t SequenceLayout::value_offset(uint32_t layer) const {
  return key_offset(layer) + buffer_bytes_;
}

Status SequenceLayout::for_each_range(uint64_t from, uint64_t to, const Visit& visit) const {
  DJINN_ASSERT(from <= to && to <= capacity_);
  if (from == to) return {};  // else a line that begins inside a page would ask for that page
  for (uint32_t row = 0; row < rows_; ++row) {
    DJINN_CHECK(visit_line(tokens_offset(row), kTokenBytes, from, to, visit));
  }
  for (uint64_t buffer = 0; buffer < 2 * uint64_t{layers_}; ++buffer) {
    const uint64_t base = token_bytes_ + buffer * buffer_bytes_;
    for (uint64_t line = 0; line < lines_; ++line) {
      DJINN_CHECK(visit_line(base + line * capacity_ * slot_bytes_, slot_bytes_, from, to, visit));
    }
  }
  return {};
}

uint64_t SequenceLayout::committed_bytes(uint64_t tokens) const {
  DJINN_ASSERT(tokens <= capacity_);
  if (tokens == 0) return 0;
  // A line that begins inside a page and ends inside another touches two pages more than its bytes.
  const uint64_t buffer = std::min(lines_ * (tokens * slot_bytes_ + 2 * kPage), buffer_bytes_);
  const uint64_t token_area = std::min(rows_ * (tokens * kTokenBytes + 2 * kPage), token_bytes_);
  return 2 * uint64_t{layers_} * buffer + token_area;
}

}  // namespace djinn::gc
