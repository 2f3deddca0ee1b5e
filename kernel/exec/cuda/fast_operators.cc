// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/fast_operators.h"

#include <ATen/ops/empty.h>

#include <bit>

#include "kernel/exec/fast_rows.h"
#include "kernel/exec/own_operators.h"

namespace djinn::exec {

void register_cuda_operators() {
  register_operators();  // which defines them
  static const auto* const library = [] {
    auto* const made = new torch::Library(torch::Library::IMPL, "djinn", c10::DispatchKey::CUDA,
                                          __FILE__, __LINE__);
    define_cuda_linear(*made);
    define_cuda_rows(*made);
    define_cuda_attend(*made);
    return made;
  }();
  (void)library;
}

std::optional<cuda::Element> cuda_element(at::ScalarType type) {
  static_assert(static_cast<int>(cuda::Element::kBFloat16) ==
                static_cast<int>(kernels::Element::kBFloat16));
  static_assert(static_cast<int>(cuda::Element::kFloat16) ==
                static_cast<int>(kernels::Element::kFloat16));
  const auto element = element_of(type);
  if (!element) return std::nullopt;
  return static_cast<cuda::Element>(*element);
}

bool are_vectors(int64_t elements, at::ScalarType type) {
  return elements * static_cast<int64_t>(c10::elementSize(type)) % cuda::kVectorBytes == 0;
}

bool is_at_vector(const at::Tensor& tensor) {
  return std::bit_cast<uintptr_t>(tensor.const_data_ptr()) % cuda::kVectorBytes == 0;
}

VectorRows in_vector_rows(const at::Tensor& tensor) {
  const std::optional<int64_t> stride = row_stride(tensor);
  if (stride && are_vectors(*stride, tensor.scalar_type()) && is_at_vector(tensor)) {
    return {tensor, *stride};
  }
  const at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
  return {copy.copy_(tensor), tensor.size(-1)};
}

}  // namespace djinn::exec
