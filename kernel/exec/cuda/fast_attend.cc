// SPDX-License-Identifier: Apache-2.0

// djinn::attend (kernel/exec/fast_attend.cc) on a GPU: each token of a query is a row of the
// kernel's, some of them at a time. So a prompt's token has the bits that it has as a token step,
// and a long prompt reads its keys and values as often as it has tokens.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernel/exec/as_before.h"
#include "kernel/exec/cuda/fast_operators.h"
#include "kernel/exec/cuda/own_kernels.h"
#include "kernel/exec/fast_rows.h"

namespace djinn::exec {
namespace {

using Mask = std::optional<at::Tensor>;

// Tokens of queries that have a call: what their splits found is kept meanwhile.
constexpr int64_t kTokensAtOnce = 64;
// What a call looks at lies at multiples of this.
constexpr int64_t kTableAlignment = 16;

// [rows, heads, keys, width] of a buffer: heads anywhere, tokens one after the other.
bool is_cache(const at::Tensor& tensor) {
  return tensor.stride(3) == 1 && (tensor.size(2) == 1 || tensor.stride(2) == tensor.size(3)) &&
         are_vectors(tensor.stride(1), tensor.scalar_type()) &&
         are_vectors(tensor.stride(0), tensor.scalar_type()) && is_at_vector(tensor);
}

bool is_ours(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
             bool grouped) {
  if (query.dim() != 4 || key.dim() != 4 || key.sizes() != value.sizes()) return false;
  const at::ScalarType type = query.scalar_type();
  if (!cuda_element(type) || key.scalar_type() != type || value.scalar_type() != type) return false;
  const int64_t width = query.size(3), heads = query.size(1), shared = key.size(1);
  if (query.numel() == 0 || key.numel() == 0 || key.size(3) != width ||
      key.size(0) != query.size(0) || !are_vectors(width, type) || width > cuda::kHeadWidthMax ||
      heads % shared != 0 || (!grouped && heads != shared)) {
    return false;
  }
  return is_cache(key) && is_cache(value) && key.stride(0) == value.stride(0) &&
         key.stride(1) == value.stride(1);
}

// A mask is bytes, [rows, 1, tokens, keys], broadcast.
bool is_ours(const Mask& mask, const at::Tensor& query, const at::Tensor& key) {
  if (!mask) return true;
  if (mask->scalar_type() != at::kBool || mask->dim() != 4 || mask->size(1) != 1) return false;
  const auto fits = [&](int64_t d, int64_t size) {
    return mask->size(d) == size || mask->size(d) == 1;
  };
  return fits(0, query.size(0)) && fits(2, query.size(2)) && fits(3, key.size(2));
}

// A token's heads side by side, [rows, heads, tokens, width] as it is given and as it is kept.
at::Tensor with_heads_together(const at::Tensor& query) {
  const int64_t heads = query.size(1), tokens = query.size(2), width = query.size(3);
  const bool is_so = query.stride(3) == 1 && (heads == 1 || query.stride(1) == width) &&
                     (tokens == 1 || query.stride(2) == heads * width) &&
                     (query.size(0) == 1 || query.stride(0) == tokens * heads * width) &&
                     is_at_vector(query);
  if (is_so) return query;
  const at::Tensor copy =
      at::empty({query.size(0), tokens, heads, width}, query.options()).transpose(1, 2);
  return copy.copy_(query);
}

// What calls read of their rows, and what splits leave, in memory of the device.
class Tables {
 public:
  Tables(const at::Tensor& query, int64_t rows, int64_t splits)
      : rows_(rows),
        parts_floats_(cuda::attend_parts(rows, query.size(1), splits, query.size(3))),
        memory_(
            at::empty({parts_floats_ * 4 + rows * kRowBytes}, query.options().dtype(at::kByte))) {}

  [[nodiscard]] float* parts() const { return reinterpret_cast<float*>(at(0)); }
  [[nodiscard]] cuda::CacheRow* cache() const {
    return reinterpret_cast<cuda::CacheRow*>(at(parts_floats_ * 4));
  }
  [[nodiscard]] const uint8_t** masks() const {
    return reinterpret_cast<const uint8_t**>(cache() + rows_);
  }
  [[nodiscard]] int32_t* lengths() const { return reinterpret_cast<int32_t*>(masks() + rows_); }
  [[nodiscard]] int32_t* firsts() const { return lengths() + rows_; }

 private:
  static constexpr int64_t kRowBytes =
      sizeof(cuda::CacheRow) + sizeof(uint8_t*) + 2 * sizeof(int32_t);
  static_assert((cuda::kPartExtra * 4) % kTableAlignment == 0);

  [[nodiscard]] std::byte* at(int64_t offset) const {
    return static_cast<std::byte*>(memory_.mutable_data_ptr()) + offset;
  }

  int64_t rows_;
  int64_t parts_floats_;  // of vectors: what lies behind them is aligned
  at::Tensor memory_;
};

cuda::AttendRows rows_call(const at::Tensor& key, const at::Tensor& value, const Mask& mask,
                           int64_t tokens, bool causal, const Tables& tables) {
  cuda::AttendRows call;
  call.key = key.const_data_ptr();
  call.value = value.const_data_ptr();
  call.cache = tables.cache();
  call.masks = tables.masks();
  call.lengths = tables.lengths();
  call.firsts = tables.firsts();
  call.row_bytes = step_of(key, 0) * static_cast<int64_t>(key.element_size());
  call.head_stride = key.stride(1);
  call.tokens = tokens;
  call.keys = static_cast<int32_t>(key.size(2));
  call.causal = causal;
  if (mask) {
    call.mask = static_cast<const uint8_t*>(mask->const_data_ptr());
    call.mask_row = step_of(*mask, 0);
    call.mask_token = step_of(*mask, 2);
    call.mask_key = step_of(*mask, 3);
  }
  return call;
}

at::Tensor attend(const at::Tensor& given, const at::Tensor& key, const at::Tensor& value,
                  const Mask& mask, std::optional<double> scale, bool grouped, bool causal) {
  if (!is_ours(given, key, value, grouped) || !is_ours(mask, given, key) || (causal && mask)) {
    return attention_as_before(given, key, value, mask, scale, grouped, causal);
  }
  const at::Tensor query = with_heads_together(given);
  const int64_t heads = query.size(1), tokens = query.size(2), width = query.size(3);
  const at::Tensor out =
      at::empty({query.size(0), tokens, heads, width}, query.options()).transpose(1, 2);
  const int64_t splits = (key.size(2) + cuda::kSplitTokens - 1) / cuda::kSplitTokens;
  const int64_t all = query.size(0) * tokens;
  const Tables tables(query, std::min(all, kTokensAtOnce), splits);
  cuda::AttendRows rows = rows_call(key, value, mask, tokens, causal, tables);
  cuda::Attend call;
  call.cache = tables.cache();
  call.lengths = tables.lengths();
  call.firsts = tables.firsts();
  call.masks = mask ? tables.masks() : nullptr;
  call.mask_step = rows.mask_key;
  call.parts = tables.parts();
  call.query_stride = call.out_stride = heads * width;
  call.heads = static_cast<int32_t>(heads);
  call.cache_heads = static_cast<int32_t>(key.size(1));
  call.width = static_cast<int32_t>(width);
  call.splits = static_cast<int32_t>(splits);
  call.scale = static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(width))));
  const int64_t token_bytes = heads * width * static_cast<int64_t>(query.element_size());
  for (int64_t begin = 0; begin < all; begin += kTokensAtOnce) {
    rows.begin = begin;
    rows.count = call.rows = static_cast<int32_t>(std::min(all - begin, kTokensAtOnce));
    call.query = static_cast<const std::byte*>(query.const_data_ptr()) + begin * token_bytes;
    call.out = static_cast<std::byte*>(out.mutable_data_ptr()) + begin * token_bytes;
    launch_kernel(rows);
    launch_attend(call, *cuda_element(query.scalar_type()));
  }
  return out;
}

}  // namespace

void define_cuda_attend(torch::Library& cuda) {
  cuda.impl("attend", &attend);
}

}  // namespace djinn::exec
