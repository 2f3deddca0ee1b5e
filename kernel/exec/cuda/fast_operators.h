// SPDX-License-Identifier: Apache-2.0

// Internal operators (kernel/srg/rewrite) on a GPU, by our own kernels: linear_rows, linears,
// rms_norm, layer_norm, gate, rope, attend. What a kernel does not take is computed as the graph
// said before, by LibTorch. Each row of a result has the bits that it has alone, and those of a
// prompt the ones of a token step.
#pragma once

#include <optional>

#include "kernel/exec/cuda/kernels/element.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Registers them; later calls do nothing. Before a program that names one is run.
void register_cuda_operators();

void define_cuda_linear(torch::Library& cuda);
void define_cuda_rows(torch::Library& cuda);
void define_cuda_attend(torch::Library& cuda);

// What they share.

// Nothing where our kernels do not compute on the type.
[[nodiscard]] std::optional<cuda::Element> cuda_element(at::ScalarType type);

// Whether so many elements are a multiple of 16 bytes.
[[nodiscard]] bool are_vectors(int64_t elements, at::ScalarType type);
// Whether its first element lies at a multiple of 16 bytes.
[[nodiscard]] bool is_at_vector(const at::Tensor& tensor);

// The same elements, dense in rows that begin at multiples of 16 bytes. Precondition: its last
// dimension is a multiple of 16 bytes.
struct VectorRows {
  at::Tensor tensor;
  int64_t stride = 0;  // elements between rows; 0 where there is one
};
[[nodiscard]] VectorRows in_vector_rows(const at::Tensor& tensor);

}  // namespace djinn::exec
