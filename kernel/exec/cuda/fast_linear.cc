// SPDX-License-Identifier: Apache-2.0

// djinn::linear_rows, djinn::linears (kernel/exec/fast_linear.cc) on a GPU. Rows are multiplied
// eight at a time, however many there are: so each has the bits that it has alone, which LibTorch's
// products do not promise. A long prompt reads the weights as often.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "kernel/exec/as_before.h"
#include "kernel/exec/cuda/fast_operators.h"
#include "kernel/exec/cuda/own_kernels.h"

namespace djinn::exec {
namespace {

using Bias = std::optional<at::Tensor>;

enum class Side : uint8_t { kNone, kInputs, kOutputs };

// What of the weight lies side by side, so that a kernel reads 16 bytes of it at once.
Side dense_side(const at::Tensor& weight, bool turned) {
  const int64_t inputs = weight.size(turned ? 0 : 1), outputs = weight.size(turned ? 1 : 0);
  const int64_t input_step = weight.stride(turned ? 0 : 1);
  const int64_t output_step = weight.stride(turned ? 1 : 0);
  const at::ScalarType type = weight.scalar_type();
  if (!is_at_vector(weight)) return Side::kNone;
  if (input_step == 1 && (output_step == inputs || outputs == 1) && are_vectors(inputs, type)) {
    return Side::kInputs;
  }
  const bool has_outputs = output_step == 1 && are_vectors(input_step, type);
  return has_outputs && are_vectors(outputs, type) ? Side::kOutputs : Side::kNone;
}

// The side by which our kernels compute the product, if they do.
Side side_of(const at::Tensor& input, const at::Tensor& weight, const Bias& bias, bool turned) {
  if (input.dim() < 1 || weight.dim() != 2 || input.numel() == 0 || weight.numel() == 0) {
    return Side::kNone;
  }
  const at::ScalarType type = weight.scalar_type();
  if (input.size(-1) != weight.size(turned ? 0 : 1) || input.scalar_type() != type ||
      !cuda_element(type) || !are_vectors(input.size(-1), type)) {
    return Side::kNone;
  }
  const int64_t outputs = weight.size(turned ? 1 : 0);
  if (bias && (bias->scalar_type() != type || bias->dim() > 1 ||
               (bias->numel() != 1 && bias->numel() != outputs))) {
    return Side::kNone;
  }
  return dense_side(weight, turned);
}

at::Tensor empty_result(const at::Tensor& input, int64_t outputs) {
  at::DimVector sizes(input.sizes());
  sizes.back() = outputs;
  return at::empty(sizes, input.options());
}

// How a bias lies must not change what a row gets.
Bias dense(const Bias& bias, int64_t outputs) {
  if (!bias) return std::nullopt;
  return bias->expand({outputs}).contiguous();
}

const std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

// Calls f(first row, how many) for all rows of [..., inputs].
template <typename F>
void for_row_groups(const at::Tensor& input, const F& f) {
  const int64_t rows = input.numel() / input.size(-1);
  for (int64_t begin = 0; begin < rows; begin += cuda::kGemvRows) {
    f(begin, static_cast<int32_t>(std::min<int64_t>(rows - begin, cuda::kGemvRows)));
  }
}

// A product whose weight has dense inputs.
struct Part {
  at::Tensor weight;
  Bias bias;
  at::Tensor result;
};

// Up to three weights of one input.
void multiply(const VectorRows& x, std::span<const Part> parts) {
  const at::ScalarType type = x.tensor.scalar_type();
  const auto bytes = static_cast<int64_t>(c10::elementSize(type));
  for_row_groups(x.tensor, [&](int64_t begin, int32_t rows) {
    cuda::Gemv call;
    call.x = bytes_of(x.tensor) + begin * x.stride * bytes;
    call.x_stride = x.stride;
    call.inputs = x.tensor.size(-1);
    call.rows = rows;
    call.count = static_cast<int32_t>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t outputs = parts[i].result.size(-1);
      auto* const y = static_cast<std::byte*>(parts[i].result.mutable_data_ptr());
      call.weights[i] = {bytes_of(parts[i].weight),
                         parts[i].bias ? bytes_of(*parts[i].bias) : nullptr,
                         y + begin * outputs * bytes, outputs, outputs};
    }
    launch_kernel(call, *cuda_element(type), multiprocessors());
  });
}

void multiply_turned(const VectorRows& x, const at::Tensor& weight, bool turned, const Bias& bias,
                     const at::Tensor& result) {
  const at::ScalarType type = x.tensor.scalar_type();
  const auto bytes = static_cast<int64_t>(c10::elementSize(type));
  const int64_t outputs = result.size(-1);
  auto* const y = static_cast<std::byte*>(result.mutable_data_ptr());
  for_row_groups(x.tensor, [&](int64_t begin, int32_t rows) {
    cuda::TurnedGemv call;
    call.weight = weight.const_data_ptr();
    call.bias = bias ? bias->const_data_ptr() : nullptr;
    call.x = bytes_of(x.tensor) + begin * x.stride * bytes;
    call.y = y + begin * outputs * bytes;
    call.weight_stride = weight.stride(turned ? 0 : 1);
    call.x_stride = x.stride;
    call.y_stride = outputs;
    call.inputs = x.tensor.size(-1);
    call.outputs = outputs;
    call.rows = rows;
    launch_kernel(call, *cuda_element(type));
  });
}

at::Tensor linear_rows(const at::Tensor& input, const at::Tensor& weight, const Bias& bias,
                       bool turned) {
  const Side side = side_of(input, weight, bias, turned);
  if (side == Side::kNone) return linear_as_before(input, weight, bias, turned);
  const int64_t outputs = weight.size(turned ? 1 : 0);
  const VectorRows x = in_vector_rows(input);
  const Part part{weight, dense(bias, outputs), empty_result(input, outputs)};
  if (side == Side::kInputs) {
    multiply(x, {&part, 1});
  } else {
    multiply_turned(x, weight, turned, part.bias, part.result);
  }
  return part.result;
}

std::vector<at::Tensor> linears(const at::Tensor& input, at::TensorList weights,
                                const c10::List<Bias>& biases, bool turned) {
  TORCH_CHECK(weights.size() == biases.size(), "there are as many biases as weights");
  std::vector<at::Tensor> results;
  c10::SmallVector<Part, 4> parts;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Bias bias = biases.get(i);
    if (side_of(input, weights[i], bias, turned) != Side::kInputs) {
      results.push_back(linear_rows(input, weights[i], bias, turned));
      continue;
    }
    const int64_t outputs = weights[i].size(turned ? 1 : 0);
    parts.push_back({weights[i], dense(bias, outputs), empty_result(input, outputs)});
    results.push_back(parts.back().result);
  }
  if (parts.empty()) return results;
  const VectorRows x = in_vector_rows(input);
  std::span<const Part> left(parts.data(), parts.size());
  while (!left.empty()) {
    const size_t count = std::min<size_t>(left.size(), cuda::kGemvWeights);
    multiply(x, left.first(count));
    left = left.subspan(count);
  }
  return results;
}

}  // namespace

void define_cuda_linear(torch::Library& cuda) {
  cuda.impl("linear_rows", &linear_rows);
  cuda.impl("linears", &linears);
}

}  // namespace djinn::exec
