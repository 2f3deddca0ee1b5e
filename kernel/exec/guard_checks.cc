// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/guard_checks.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>

namespace djinn::exec {
namespace {

// Requires every item to lie in [0, end), or to equal `exempt`.
template <typename T>
void require_items(const at::Tensor& indices, int64_t end, int64_t exempt) {
  const at::Tensor dense = indices.contiguous();
  const T* const data = dense.const_data_ptr<T>();
  const bool fits = std::all_of(data, data + dense.numel(), [&](T index) {
    return (index >= 0 && index < end) || index == exempt;
  });
  TORCH_CHECK_INDEX(fits, "an index is outside of [0, ", end, ")");
}

}  // namespace

const at::Tensor* given(const Stack& stack, size_t position) {
  if (!stack[position].isTensor() || !stack[position].toTensor().defined()) return nullptr;
  return &stack[position].toTensor();
}

void require_same_sizes(const Stack& stack, size_t a, size_t b) {
  TORCH_CHECK_VALUE(stack[a].toTensor().sizes() == stack[b].toTensor().sizes(), "arguments ", a,
                    " and ", b, " must have the same sizes");
}

void require_sizes(const Stack& stack, size_t position, at::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(stack[position].toTensor().sizes() == sizes, "argument ", position,
                    " must be of ", sizes);
}

void require_expands(const Stack& stack, size_t position, at::IntArrayRef sizes) {
  const at::Tensor* const argument = given(stack, position);
  TORCH_CHECK_VALUE(argument == nullptr || at::is_expandable_to(argument->sizes(), sizes),
                    "argument ", position, " does not expand to ", sizes);
}

void require_contiguous(const Stack& stack, size_t position) {
  TORCH_CHECK_VALUE(stack[position].toTensor().is_contiguous(), "argument ", position,
                    " must be contiguous");
}

void require_views(const at::Tensor& tensor, int64_t dim) {
  if (dim < -tensor.dim() || dim >= tensor.dim()) return;  // kernels refuse it
  TORCH_CHECK_VALUE(tensor.size(dim) <= kViewsMax, "dimension ", dim, " has ", tensor.size(dim),
                    " parts, and at most ", kViewsMax, " are taken apart");
}

void require_indices(const at::Tensor& indices, int64_t end, int64_t exempt) {
  if (!indices.is_cpu()) return;  // what is on a GPU its kernels look at
  if (end == 0) TORCH_CHECK_INDEX(indices.numel() == 0, "an index into nothing");
  if (end == 0) return;
  switch (indices.scalar_type()) {
    case at::kLong:
      return require_items<int64_t>(indices, end, exempt);
    case at::kInt:
      return require_items<int32_t>(indices, end, exempt);
    case at::kByte:
      return require_items<uint8_t>(indices, end, exempt);
    default:
      TORCH_CHECK_TYPE(false, "indices must be int64, int32 or uint8");
  }
}

}  // namespace djinn::exec
