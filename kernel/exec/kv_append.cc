// SPDX-License-Identifier: Apache-2.0

// djinn::kv_append(Tensor(a!) buffer, Tensor new, SymInt position) -> Tensor(a!)
//
// This copies new, [B, H, T, D], to buffer[:, :, position : position + T, :] and gives buffer,
// [B, H, capacity, D] of the same dtype, back. Errors: position < 0 or position + T > capacity,
// shapes or dtypes that differ.
#include <cstring>

#include "kernel/exec/own_operators.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

// Tells whether each row's D elements are dense, as those that attention layers give are.
bool has_dense_rows(const at::Tensor& tensor) {
  return tensor.size(3) <= 1 || tensor.stride(3) == 1;
}

void check_append(const at::Tensor& buffer, const at::Tensor& fresh, int64_t position) {
  TORCH_CHECK_VALUE(buffer.dim() == 4 && fresh.dim() == 4,
                    "kv_append takes [batch, heads, tokens, dim] twice");
  TORCH_CHECK_VALUE(buffer.scalar_type() == fresh.scalar_type(), "kv_append: buffer is ",
                    buffer.scalar_type(), ", new is ", fresh.scalar_type());
  for (const int dimension : {0, 1, 3}) {
    TORCH_CHECK_VALUE(buffer.size(dimension) == fresh.size(dimension), "kv_append: dimension ",
                      dimension, " is ", buffer.size(dimension), " in buffer, ",
                      fresh.size(dimension), " in new");
  }
  TORCH_CHECK_INDEX(
      position >= 0 && position <= buffer.size(2) && fresh.size(2) <= buffer.size(2) - position,
      "kv_append: ", fresh.size(2), " tokens at ", position, " do not fit a capacity of ",
      buffer.size(2));
}

// Asks for where a token's rows go, all at once: they lie a buffer's capacity apart, each in lines
// and a page that no cache has, and one after the other would be waited for.
void fetch_targets(const at::Tensor& buffer, int64_t position) {
  constexpr int64_t kLineBytes = 64;
  const int64_t element = buffer.element_size();
  const auto* const to = static_cast<const std::byte*>(buffer.const_data_ptr());
  for (int64_t b = 0; b < buffer.size(0); ++b) {
    for (int64_t h = 0; h < buffer.size(1); ++h) {
      const std::byte* const row =
          to +
          (b * buffer.stride(0) + h * buffer.stride(1) + position * buffer.stride(2)) * element;
      for (int64_t at = 0; at < buffer.size(3) * element; at += kLineBytes) {
        __builtin_prefetch(row + at, 1);
      }
    }
  }
}

void copy_rows(const at::Tensor& buffer, const at::Tensor& fresh, int64_t position) {
  const int64_t element = buffer.element_size();
  const size_t row_bytes = static_cast<size_t>(buffer.size(3) * element);
  auto* const to = static_cast<std::byte*>(buffer.mutable_data_ptr());
  if (fresh.size(2) == 1) fetch_targets(buffer, position);
  const auto* const from = static_cast<const std::byte*>(fresh.const_data_ptr());
  for (int64_t b = 0; b < fresh.size(0); ++b) {
    for (int64_t h = 0; h < fresh.size(1); ++h) {
      for (int64_t t = 0; t < fresh.size(2); ++t) {
        const int64_t target =
            b * buffer.stride(0) + h * buffer.stride(1) + (position + t) * buffer.stride(2);
        const int64_t source = b * fresh.stride(0) + h * fresh.stride(1) + t * fresh.stride(2);
        std::memcpy(to + target * element, from + source * element, row_bytes);
      }
    }
  }
}

at::Tensor& kv_append(at::Tensor& buffer, const at::Tensor& fresh, int64_t position) {
  check_append(buffer, fresh, position);
  const bool rows = has_dense_rows(buffer) && has_dense_rows(fresh);
  if (rows && !buffer.is_alias_of(fresh)) {
    if (fresh.numel() > 0) copy_rows(buffer, fresh, position);
  } else {
    buffer.narrow(2, position, fresh.size(2)).copy_(fresh);
  }
  return buffer;
}

at::Tensor& kv_append_cuda(at::Tensor& buffer, const at::Tensor& fresh, int64_t position) {
  check_append(buffer, fresh, position);
  buffer.narrow(2, position, fresh.size(2)).copy_(fresh);
  return buffer;
}

at::Tensor& kv_append_meta(at::Tensor& buffer, const at::Tensor& fresh, int64_t position) {
  check_append(buffer, fresh, position);
  return buffer;
}

}  // namespace

void define_kv_append(OwnLibraries& libraries) {
  libraries.definition.def(
      "kv_append(Tensor(a!) buffer, Tensor new, SymInt position) -> Tensor(a!)");
  libraries.cpu.impl("kv_append", &kv_append);
  libraries.meta.impl("kv_append", &kv_append_meta);
  libraries.cuda.impl("kv_append", &kv_append_cuda);
}

}  // namespace djinn::exec
