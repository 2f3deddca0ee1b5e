// SPDX-License-Identifier: Apache-2.0

// djinn::linear_rows(Tensor input, Tensor weight, Tensor? bias, bool turned) -> Tensor
//
// An internal operator: what kernel/srg/rewrite makes of a product with a constant matrix. weight
// is [outputs, inputs], or turned [inputs, outputs]. Up to kLinearRowsMax rows, with a bias of one
// dimension or none, are computed by our own kernels, which read the weights once for all of them;
// all else is what the graph said before: aten::linear, or, turned, aten::addmm and aten::matmul.
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <optional>

#include "kernel/exec/fast_rows.h"
#include "kernel/exec/own_operators.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/srg/rewrite/rewrite.h"

namespace djinn::exec {
namespace {

// Lines of outputs that are worth a thread, where their parts are summed.
constexpr int64_t kGrain = 64;
// Of weights, that a thread takes at once.
constexpr int64_t kShareBytes = 128 * 1024;

using Bias = std::optional<at::Tensor>;

at::Tensor as_before(const at::Tensor& input, const at::Tensor& weight, const Bias& bias,
                     bool turned) {
  if (!turned) return at::linear(input, weight, bias);
  return bias ? at::addmm(*bias, input, weight) : at::matmul(input, weight);
}

// Tells whether the product is one of our kernels', of a few rows.
bool is_ours(const at::Tensor& input, const at::Tensor& weight, const Bias& bias, bool turned) {
  if (input.dim() < 1 || weight.dim() != 2) return false;
  const int64_t inputs = weight.size(turned ? 0 : 1), outputs = weight.size(turned ? 1 : 0);
  if (input.size(-1) != inputs || inputs == 0 || outputs == 0) return false;
  const int64_t rows = input.numel() / inputs;
  if (rows == 0 || rows > srg::kLinearRowsMax) return false;
  if (weight.stride(0) != 1 && weight.stride(1) != 1) return false;
  const at::ScalarType type = weight.scalar_type();
  if (input.scalar_type() != type || !element_of(type)) return false;
  return !bias || (bias->scalar_type() == type && bias->dim() <= 1 &&
                   (bias->numel() == 1 || bias->numel() == outputs));
}

void run_outputs_first(const kernels::Linear& call, kernels::Element element, int64_t row_bytes) {
  const kernels::LinearKernel kernel =
      fast_kernels().linear.outputs_first[static_cast<size_t>(element)];
  const int64_t share = std::max<int64_t>(kShareBytes / row_bytes, 1);
  for_each_share((call.outputs + share - 1) / share, [&](int64_t i) {
    kernel(call, i * share, std::min((i + 1) * share, call.outputs));
  });
}

void run_inputs_first(kernels::Linear call, kernels::Element element) {
  const int64_t chunks = kernels::chunks_of(call.inputs);
  const at::Tensor parts =
      at::empty({chunks, call.rows, kernels::padded_outputs(call.outputs)}, at::kFloat);
  call.parts = parts.mutable_data_ptr<float>();
  const kernels::LinearKernels& linear = fast_kernels().linear;
  const kernels::LinearKernel kernel = linear.inputs_first[static_cast<size_t>(element)];
  const kernels::LinearKernel sum = linear.sum_chunks[static_cast<size_t>(element)];
  // A thread's chunks are neighbours, since each fetches the beginning of the next one.
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) { kernel(call, begin, end); });
  constexpr int64_t kLine = kernels::padded_outputs(1);
  const int64_t lines = kernels::padded_outputs(call.outputs) / kLine;
  at::parallel_for(0, lines, kGrain, [&](int64_t begin, int64_t end) {
    sum(call, begin * kLine, std::min(end * kLine, call.outputs));
  });
}

at::Tensor linear_rows(const at::Tensor& given, const at::Tensor& weight, const Bias& given_bias,
                       bool turned) {
  if (!is_ours(given, weight, given_bias, turned)) {
    return as_before(given, weight, given_bias, turned);
  }
  const int64_t outputs = weight.size(turned ? 1 : 0);
  // How rows and bias lie must not change what a row gets.
  const at::Tensor input = row_stride(given) ? given : given.contiguous();
  const Bias bias = given_bias ? Bias(given_bias->expand({outputs}).contiguous()) : Bias();
  at::DimVector sizes(input.sizes());
  sizes.back() = outputs;
  const at::Tensor result = at::empty(sizes, input.options());

  // The dimension in which the weight is dense, of the two, tells how it is read.
  const bool inputs_dense = weight.stride(turned ? 0 : 1) == 1;
  kernels::Linear call;
  call.x = input.const_data_ptr();
  call.x_stride = row_stride(input).value();
  call.weight = weight.const_data_ptr();
  call.weight_stride = weight.stride(inputs_dense == turned ? 1 : 0);
  call.bias = bias ? bias->const_data_ptr() : nullptr;
  call.y = result.mutable_data_ptr();
  call.y_stride = outputs;
  call.rows = input.numel() / input.size(-1);
  call.inputs = input.size(-1);
  call.outputs = outputs;
  if (inputs_dense) {
    const auto element_bytes = static_cast<int64_t>(weight.element_size());
    run_outputs_first(call, *element_of(weight.scalar_type()), call.inputs * element_bytes);
  } else {
    run_inputs_first(call, *element_of(weight.scalar_type()));
  }
  return result;
}

}  // namespace

void define_fast_linear(OwnLibraries& libraries) {
  libraries.definition.def(
      "linear_rows(Tensor input, Tensor weight, Tensor? bias, bool turned) -> Tensor");
  libraries.cpu.impl("linear_rows", &linear_rows);
  libraries.meta.impl("linear_rows", &as_before);
}

}  // namespace djinn::exec
