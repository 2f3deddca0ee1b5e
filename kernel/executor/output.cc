// SPDX-License-Identifier: Apache-2.0

#include "kernel/executor/output.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::exec {
namespace {

struct Extents {
  uint64_t elements = 1;
  uint64_t reached = 0;  // one past the last element, from the storage's start
};

std::optional<Extents> extents_of(const OutputView& view) {
  Extents extents{1, view.storage_offset};
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] < 0 || view.strides[i] < 0) return std::nullopt;
    const auto size = static_cast<uint64_t>(view.sizes[i]);
    if (size == 0) return Extents{0, 0};
    const auto step = checked_mul(size - 1, static_cast<uint64_t>(view.strides[i]));
    const auto elements = checked_mul(extents.elements, size);
    const auto reached = step ? checked_add(extents.reached, *step) : std::nullopt;
    if (!elements || !reached) return std::nullopt;
    extents = {*elements, *reached};
  }
  ++extents.reached;
  return extents;
}

// Copies one dimension after the other; dense runs are copied whole.
class Copier {
 public:
  Copier(const OutputView& view, std::span<std::byte> out)
      : view_(view), element_(size_of(view.dtype)), out_(out.data()) {
    dense_from_ = view.sizes.size();
    int64_t expected = 1;
    while (dense_from_ > 0 && is_dense(dense_from_ - 1, expected)) {
      expected *= view.sizes[--dense_from_];
    }
    run_bytes_ = static_cast<size_t>(expected) * element_;
  }

  void copy() { copy_dimension(0, view_.storage.on_host() + view_.storage_offset * element_); }

 private:
  [[nodiscard]] bool is_dense(size_t dimension, int64_t stride) const {
    return view_.sizes[dimension] == 1 || view_.strides[dimension] == stride;
  }

  void copy_dimension(size_t dimension, const std::byte* from) {
    if (dimension == dense_from_) {
      std::memcpy(out_, from, run_bytes_);
      out_ += run_bytes_;
      return;
    }
    const size_t stride = static_cast<size_t>(view_.strides[dimension]) * element_;
    for (int64_t i = 0; i < view_.sizes[dimension]; ++i) {
      copy_dimension(dimension + 1, from + static_cast<size_t>(i) * stride);
    }
  }

  const OutputView& view_;
  size_t element_;
  std::byte* out_;
  size_t dense_from_ = 0;
  size_t run_bytes_ = 0;
};

Result<Extents> check(const OutputView& view, std::span<const std::byte> out) {
  const uint64_t element = size_of(view.dtype);
  const bool consistent = element != 0 && view.sizes.size() == view.strides.size();
  const auto extents = consistent ? extents_of(view) : std::nullopt;
  const auto bytes = extents ? checked_mul(extents->elements, element) : std::nullopt;
  const auto reached = extents ? checked_mul(extents->reached, element) : std::nullopt;
  if (!bytes || !reached || *reached > view.storage_bytes) {
    return Error{ErrorCode::kOutOfRange, "The view reaches beyond its storage."};
  }
  if (out.size() != *bytes) {
    return Error{ErrorCode::kInvalidArgument, "The destination's size is not that of the tensor."};
  }
  return *extents;
}

// Copies a view through a room. Dimensions are in the order of their strides in the storage, so
// that a piece of the storage is read once, in whatever order its elements leave.
class PieceCopier {
 public:
  PieceCopier(const OutputView& view, std::span<std::byte> out, std::span<std::byte> room,
              const ReadStorage& read)
      : element_(size_of(view.dtype)), out_(out.data()), room_(room), read_(read) {
    uint64_t apart = element_;  // in `out`
    for (size_t i = view.sizes.size(); i-- > 0;) {
      const auto size = static_cast<uint64_t>(view.sizes[i]);
      if (size > 1) {
        dimensions_.push_back({size, static_cast<uint64_t>(view.strides[i]) * element_, apart});
      }
      apart *= size;
    }
    std::ranges::stable_sort(dimensions_, std::ranges::greater(), &Dimension::stride);
    spans_.assign(dimensions_.size() + 1, element_);
    for (size_t d = dimensions_.size(); d-- > 0;) {
      spans_[d] = spans_[d + 1] + (dimensions_[d].size - 1) * dimensions_[d].stride;
    }
  }

  // from: the byte of the storage that the part begins with. to: of `out`.
  Status copy(size_t dimension, uint64_t from, uint64_t to) {
    if (dimension == dimensions_.size()) return copy_piece(dimension, 0, from, to);
    const auto& [size, stride, apart] = dimensions_[dimension];
    const uint64_t inner = spans_[dimension + 1];
    if (inner > room_.size()) {
      for (uint64_t i = 0; i < size; ++i) {
        DJINN_CHECK(copy(dimension + 1, from + i * stride, to + i * apart));
      }
      return {};
    }
    const uint64_t at_once = stride == 0 ? size : 1 + (room_.size() - inner) / stride;
    for (uint64_t i = 0; i < size; i += at_once) {
      const uint64_t count = std::min(at_once, size - i);
      DJINN_CHECK(copy_piece(dimension, count, from + i * stride, to + i * apart));
    }
    return {};
  }

 private:
  struct Dimension {
    uint64_t size;
    uint64_t stride;  // bytes of the storage
    uint64_t apart;   // bytes of `out`
  };

  // Of the dimension so many indices; of those behind it all.
  Status copy_piece(size_t dimension, uint64_t count, uint64_t from, uint64_t to) {
    const bool is_element = dimension == dimensions_.size();
    const uint64_t bytes =
        is_element ? element_ : spans_[dimension + 1] + (count - 1) * dimensions_[dimension].stride;
    DJINN_CHECK(read_(from, room_.first(bytes)));
    place(dimension, count, 0, to);
    return {};
  }

  void place(size_t dimension, uint64_t count, uint64_t from, uint64_t to) {
    if (dimension == dimensions_.size()) {
      std::memcpy(out_ + to, room_.data() + from, element_);
      return;
    }
    const auto& [size, stride, apart] = dimensions_[dimension];
    const bool is_last = dimension + 1 == dimensions_.size();
    if (is_last && stride == element_ && apart == element_) {
      std::memcpy(out_ + to, room_.data() + from, count * element_);
      return;
    }
    const uint64_t next = is_last ? 0 : dimensions_[dimension + 1].size;
    for (uint64_t i = 0; i < count; ++i) {
      place(dimension + 1, next, from + i * stride, to + i * apart);
    }
  }

  uint64_t element_;
  std::byte* out_;
  std::span<std::byte> room_;
  const ReadStorage& read_;
  std::vector<Dimension> dimensions_;
  std::vector<uint64_t> spans_;  // of the storage, of the dimensions from this one on
};

}  // namespace

Status copy_elements(const OutputView& view, std::span<std::byte> out) {
  DJINN_TRY(const Extents extents, check(view, out));
  if (extents.elements > 0) Copier(view, out).copy();
  return {};
}

Status copy_elements_through(const OutputView& view, std::span<std::byte> out,
                             std::span<std::byte> room, const ReadStorage& read) {
  DJINN_TRY(const Extents extents, check(view, out));
  if (extents.elements == 0) return {};
  DJINN_ASSERT(room.size() >= size_of(view.dtype));
  return PieceCopier(view, out, room, read).copy(0, view.storage_offset * size_of(view.dtype), 0);
}

}  // namespace djinn::exec
