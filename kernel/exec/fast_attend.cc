// SPDX-License-Identifier: Apache-2.0

// djinn::attend(Tensor query, Tensor key, Tensor value, Tensor? mask, float? scale, bool grouped)
//     -> Tensor
//
// An internal operator: what kernel/srg/rewrite makes of attention over the buffers of a sequence
// group. query is [rows, heads, tokens, width], key and value are [rows, heads or fewer that are
// shared, keys, width], mask is bool, [rows, 1, tokens, keys] or broadcast. Our own kernels compute
// that, but for many tokens in bfloat16 where the machine multiplies that itself; all else is
// aten::scaled_dot_product_attention, as the graph said before.
#include <ATen/Parallel.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernel/exec/fast_rows.h"
#include "kernel/exec/joint_products.h"
#include "kernel/exec/own_operators.h"
#include "kernel/exec/shape_rules.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

// A bucket's top (lane.cc) is on the same side of it as the bucket's other runs.
constexpr int64_t kFewTokens = 32;

using Mask = std::optional<at::Tensor>;

at::Tensor as_before(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const Mask& mask, std::optional<double> scale, bool grouped) {
  take_leave();
  return at::scaled_dot_product_attention(query, key, value, mask, 0.0, false, scale, grouped);
}

bool is_ours(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  if (query.dim() != 4 || key.dim() != 4 || key.sizes() != value.sizes()) return false;
  const at::ScalarType type = query.scalar_type();
  if (!element_of(type) || key.scalar_type() != type || value.scalar_type() != type) return false;
  const int64_t width = query.size(3), heads = query.size(1), shared = key.size(1);
  return width > 0 && width <= kernels::kHeadWidthMax && key.size(3) == width &&
         key.size(0) == query.size(0) && query.numel() > 0 && shared > 0 && heads % shared == 0 &&
         query.stride(3) == 1 && key.stride(3) == 1 && value.stride(3) == 1;
}

bool is_ours(const Mask& mask, const at::Tensor& query, const at::Tensor& key) {
  if (!mask) return true;
  const auto fits = [&](int64_t dimension, int64_t size) {
    return mask->size(dimension) == size || mask->size(dimension) == 1;
  };
  return mask->scalar_type() == at::kBool && mask->dim() == 4 && mask->size(1) == 1 &&
         fits(0, query.size(0)) && fits(2, query.size(2)) && fits(3, key.size(2));
}

// Where a vector of [rows, heads, tokens, width] is.
template <typename Byte>
Byte* place(Byte* data, const at::Tensor& tensor, int64_t row, int64_t head, int64_t token) {
  const int64_t offset =
      row * tensor.stride(0) + head * tensor.stride(1) + token * tensor.stride(2);
  return data + offset * static_cast<int64_t>(tensor.element_size());
}

// Uninitialised, and lies as the operator's that it stands for, for a graph may look at it by
// strides: the fused kernel's lies as the query does, the products of matrices are contiguous.
at::Tensor empty_out(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const Mask& mask, std::optional<double> scale, bool grouped) {
  constexpr auto kMath = static_cast<int64_t>(sdp::SDPBackend::math);
  const bool is_contiguous =
      lies_in_order(query) ||
      at::_fused_sdp_choice(query, key, value, mask, 0.0, false, scale, grouped) == kMath;
  return is_contiguous ? at::empty(query.sizes(), query.options()) : at::empty_like(query);
}

// Where the machine multiplies bfloat16 itself, PyTorch does so here, and we do not. How many keys
// there are does not decide: runs of one bucket would allocate otherwise than its top.
bool is_ours_of_many(const at::Tensor& query, const Mask& mask) {
  const bool is_theirs =
      query.scalar_type() == at::kBFloat16 && fast_isa() == IsaLevel::kAvx512Bf16;
  return !is_theirs && (!mask || step_of(*mask, 3) == 1);
}

float scale_of(const at::Tensor& query, std::optional<double> scale) {
  return static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3)))));
}

// Bytes, for those of an input are the client's, and a bool may be 0 or 1 alone.
const uint8_t* bytes_of(const Mask& mask) {
  return mask ? static_cast<const uint8_t*>(mask->const_data_ptr()) : nullptr;
}

void attend_many(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const Mask& mask, std::optional<double> scale, const at::Tensor& out) {
  const int64_t heads = query.size(1), group = heads / key.size(1);
  const int64_t each = kernels::attend_scratch(key.size(2), key.size(3));
  const int64_t items = query.size(0) * heads;
  const at::Tensor scratch =
      at::empty({std::min<int64_t>(at::get_num_threads(), items), each}, at::kFloat);
  auto* const scratch_data = scratch.mutable_data_ptr<float>();
  const auto* const query_data = static_cast<const std::byte*>(query.const_data_ptr());
  const auto* const key_data = static_cast<const std::byte*>(key.const_data_ptr());
  const auto* const value_data = static_cast<const std::byte*>(value.const_data_ptr());
  auto* const out_data = static_cast<std::byte*>(out.mutable_data_ptr());
  const auto element = static_cast<size_t>(*element_of(query.scalar_type()));
  const kernels::AttendTokensKernel kernel = fast_kernels().attend.tokens[element];

  at::parallel_for(0, items, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / heads, head = i % heads;
      kernels::AttendTokens call;
      call.query = place(query_data, query, row, head, 0);
      call.query_stride = query.stride(2);
      call.key = place(key_data, key, row, head / group, 0);
      call.key_stride = key.stride(2);
      call.value = place(value_data, value, row, head / group, 0);
      call.value_stride = value.stride(2);
      if (mask) {
        call.mask = bytes_of(mask) + row * step_of(*mask, 0);
        call.mask_stride = step_of(*mask, 2);
      }
      call.out = place(out_data, out, row, head, 0);
      call.out_stride = out.stride(2);
      call.tokens = query.size(2);
      call.keys = key.size(2);
      call.width = query.size(3);
      call.scale = scale_of(query, scale);
      call.scratch = scratch_data + at::get_thread_num() * each;
      kernel(call);
    }
  });
}

void attend_few(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const Mask& mask, std::optional<double> scale, const at::Tensor& out) {
  const int64_t rows = query.size(0), heads = query.size(1), tokens = query.size(2);
  const int64_t shared = key.size(1), group = heads / shared;
  const auto* const query_data = static_cast<const std::byte*>(query.const_data_ptr());
  const auto* const key_data = static_cast<const std::byte*>(key.const_data_ptr());
  const auto* const value_data = static_cast<const std::byte*>(value.const_data_ptr());
  auto* const out_data = static_cast<std::byte*>(out.mutable_data_ptr());
  const auto element = static_cast<size_t>(*element_of(query.scalar_type()));
  const kernels::AttendKernel kernel = fast_kernels().attend.attend[element];

  at::parallel_for(0, rows * shared * tokens, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / (shared * tokens), head = i / tokens % shared, token = i % tokens;
      kernels::Attend call;
      call.query = place(query_data, query, row, head * group, token);
      call.query_stride = query.stride(1);
      call.key = place(key_data, key, row, head, 0);
      call.key_stride = key.stride(2);
      call.value = place(value_data, value, row, head, 0);
      call.value_stride = value.stride(2);
      if (mask) {
        call.mask = bytes_of(mask) + row * step_of(*mask, 0) + token * step_of(*mask, 2);
        call.mask_stride = step_of(*mask, 3);
      }
      call.out = place(out_data, out, row, head * group, token);
      call.out_stride = out.stride(1);
      call.heads = group;
      call.keys = key.size(2);
      call.width = query.size(3);
      call.scale = scale_of(query, scale);
      kernel(call);
    }
  });
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const Mask& mask, std::optional<double> scale, bool grouped) {
  if (!is_ours(query, key, value) || !is_ours(mask, query, key) ||
      (!grouped && query.size(1) != key.size(1))) {
    return as_before(query, key, value, mask, scale, grouped);
  }
  const bool are_few = query.size(2) <= kFewTokens;
  if (!are_few && !is_ours_of_many(query, mask)) {
    return as_before(query, key, value, mask, scale, grouped);
  }
  const at::Tensor out = empty_out(query, key, value, mask, scale, grouped);
  if (out.stride(3) != 1 && out.size(3) > 1) {
    return as_before(query, key, value, mask, scale, grouped);
  }
  (are_few ? attend_few : attend_many)(query, key, value, mask, scale, out);
  return out;
}

// The shape of the operator that it stands for.
at::Tensor shape_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const Mask& mask, std::optional<double> scale, bool grouped) {
  static const ShapeRule rule = shape_rule_of("aten::scaled_dot_product_attention");
  return rule({query, key, value, mask, 0.0, false, scale, grouped}).at(0);
}

}  // namespace

void define_fast_attend(OwnLibraries& libraries) {
  libraries.definition.def(
      "attend(Tensor query, Tensor key, Tensor value, Tensor? mask, float? scale, bool grouped) -> "
      "Tensor");
  libraries.cpu.impl("attend", &attend);
  libraries.meta.impl("attend", &shape_of);
}

}  // namespace djinn::exec
