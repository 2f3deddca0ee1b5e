// SPDX-License-Identifier: Apache-2.0

#include <ATen/Parallel.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/exec/executor.h"

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

// One dimension after the other; dense runs are copied whole.
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

  void copy() { copy_dimension(0, view_.storage + view_.storage_offset * element_); }

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

// With stores that do not read what they overwrite into the caches first, where there are such.
void stream(const std::byte* from, std::byte* to, size_t bytes) {
  size_t done = 0;
#ifdef __SSE2__
  const bool is_aligned = reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0;
  for (; is_aligned && bytes - done >= sizeof(__m128i); done += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
  }
  _mm_sfence();
#endif
  std::memcpy(to + done, from + done, bytes - done);
}

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

void copy_past_caches(std::span<const std::byte> from, std::span<std::byte> to) {
  constexpr int64_t kGrain = 256 << 10;  // a second thread is asleep for as long as that takes
  DJINN_ASSERT(from.size() <= to.size());
  at::parallel_for(0, static_cast<int64_t>(from.size()), kGrain, [&](int64_t begin, int64_t end) {
    const auto bytes = static_cast<size_t>(end - begin);
    stream(from.data() + begin, to.data() + begin, bytes);
  });
}

}  // namespace djinn::exec
