// SPDX-License-Identifier: Apache-2.0

#include "kernel/executor/output.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

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

}  // namespace

Status copy_elements(const OutputView& view, std::span<std::byte> out) {
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
  if (extents->elements > 0) Copier(view, out).copy();
  return {};
}

}  // namespace djinn::exec
