// SPDX-License-Identifier: Apache-2.0

// djinn::rms_norm, djinn::layer_norm, djinn::gate, djinn::rope (kernel/exec/fast_rows.cc) on a GPU.
#include "kernel/exec/fast_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <optional>

#include "kernel/exec/as_before.h"
#include "kernel/exec/cuda/fast_operators.h"
#include "kernel/exec/cuda/own_kernels.h"

namespace djinn::exec {
namespace {

using Vector = std::optional<at::Tensor>;

bool is_read_by_vectors(const Vector& vector, const at::Tensor& x) {
  return is_dense_like(vector, x) && (!vector || is_at_vector(*vector));
}

bool has_vector_rows(const at::Tensor& x) {
  return cuda_element(x.scalar_type()) && x.dim() >= 1 && x.numel() > 0 &&
         are_vectors(x.size(-1), x.scalar_type());
}

at::Tensor normed(cuda::Norm call, const at::Tensor& given, const Vector& weight,
                  const Vector& bias, double epsilon) {
  const VectorRows x = in_vector_rows(given);
  const at::Tensor y = at::empty(given.sizes(), given.options());
  call.x = x.tensor.const_data_ptr();
  call.y = y.mutable_data_ptr();
  call.weight = weight ? weight->const_data_ptr() : nullptr;
  call.bias = bias ? bias->const_data_ptr() : nullptr;
  call.x_stride = x.stride;
  call.width = call.y_stride = y.size(-1);
  call.rows = y.numel() / y.size(-1);
  call.epsilon = static_cast<float>(epsilon);
  launch_kernel(call, *cuda_element(given.scalar_type()));
  return y;
}

at::Tensor rms_norm(const at::Tensor& given, const Vector& weight, double epsilon, bool from_one,
                    bool contiguous) {
  if (!has_vector_rows(given) || !is_read_by_vectors(weight, given)) {
    return rms_norm_as_before(given, weight, epsilon, from_one, contiguous);
  }
  cuda::Norm call;
  call.weight_offset = weight && from_one ? 1.0f : 0.0f;
  const at::Tensor y = normed(call, given, weight, std::nullopt, epsilon);
  return laid_out_norm(y, given, weight, epsilon, from_one, contiguous);
}

at::Tensor layer_norm(const at::Tensor& given, const Vector& weight, const Vector& bias,
                      double epsilon) {
  if (!has_vector_rows(given) || !is_read_by_vectors(weight, given) ||
      !is_read_by_vectors(bias, given)) {
    return layer_norm_as_before(given, weight, bias, epsilon);
  }
  cuda::Norm call;
  call.centred = true;
  return normed(call, given, weight, bias, epsilon);
}

cuda::Activation activation_named(c10::string_view name) {
  if (name == "silu") return cuda::Activation::kSilu;
  return name == "gelu" ? cuda::Activation::kGelu : cuda::Activation::kGeluTanh;
}

at::Tensor gate(const at::Tensor& given, const std::optional<at::Tensor>& given_factor,
                c10::string_view activation, bool factor_first) {
  const auto element = cuda_element(given.scalar_type());
  if (!element || given.numel() == 0 ||
      (given_factor && (given_factor->scalar_type() != given.scalar_type() ||
                        given_factor->sizes() != given.sizes()))) {
    return gate_as_before(given, given_factor, activation, factor_first);
  }
  const at::Tensor x = given.contiguous();
  const at::Tensor factor = given_factor ? given_factor->contiguous() : at::Tensor();
  const at::Tensor y = at::empty(x.sizes(), x.options());
  cuda::Gate call;
  call.x = x.const_data_ptr();
  call.factor = factor.defined() ? factor.const_data_ptr() : nullptr;
  call.y = y.mutable_data_ptr();
  call.count = x.numel();
  call.activation = activation_named(activation);
  launch_kernel(call, *element);
  return laid_out_gate(y, given, given_factor, activation, factor_first);
}

cuda::TurnSteps steps_of(const at::Tensor& tensor) {
  return {step_of(tensor, 0), step_of(tensor, 1), step_of(tensor, 2)};
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                bool interleaved) {
  const auto element = cuda_element(x.scalar_type());
  if (!element || x.dim() != 4 || x.numel() == 0 || x.size(3) % 2 != 0 || x.stride(3) != 1 ||
      !has_row_for_each(x, cos) || !has_row_for_each(x, sin)) {
    return rope_as_before(x, cos, sin, interleaved);
  }
  const bool keeps_its_order = x.is_non_overlapping_and_dense();
  const at::Tensor y = keeps_its_order ? at::empty_like(x) : at::empty(x.sizes(), x.options());
  cuda::Turn call;
  call.x = x.const_data_ptr();
  call.cos = cos.const_data_ptr();
  call.sin = sin.const_data_ptr();
  call.y = y.mutable_data_ptr();
  call.x_steps = steps_of(x);
  call.cos_steps = steps_of(cos);
  call.sin_steps = steps_of(sin);
  call.y_steps = steps_of(y);
  call.rows = x.size(0);
  call.heads = x.size(1);
  call.tokens = x.size(2);
  call.width = static_cast<int32_t>(x.size(3));
  call.interleaved = interleaved;
  launch_kernel(call, *element);
  if (keeps_its_order || lies_in_order(x)) return y;
  return lying_as(rope_as_before(on_meta(x), on_meta(cos), on_meta(sin), interleaved), y);
}

}  // namespace

void define_cuda_rows(torch::Library& cuda) {
  cuda.impl("rms_norm", &rms_norm);
  cuda.impl("layer_norm", &layer_norm);
  cuda.impl("gate", &gate);
  cuda.impl("rope", &rope);
}

}  // namespace djinn::exec
