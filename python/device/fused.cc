// SPDX-License-Identifier: Apache-2.0

// Optimizers' fused steps (`fused=True`, transformers' default) are taken apart into what the plain
// form of the same optimizer does for each parameter, so that they have that form's bits. PyTorch's
// fused kernel for the CPU rounds some sums once less.
#include <ATen/ScalarOps.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsub.h>

#include "python/device/device.h"

namespace djinn::device {
namespace {

enum class Decay : uint8_t { kOfWeights, kInGradient };  // AdamW, Adam

struct Rates {
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
  double eps;
};

// Holds the state of one parameter; `most` is defined with amsgrad only.
struct Moments {
  at::Tensor average;
  at::Tensor square;
  at::Tensor most;
};

// Gives 1 - beta^step, in float64 as the CPU computes it, without reading a value.
at::Tensor correction(double beta, const at::Tensor& step) {
  return at::rsub(at::pow(at::Scalar(beta), step), 1);
}

void take_step(const at::Tensor& weights, const at::Tensor& given, const Moments& moments,
               const at::Tensor& count, const Rates& rates, Decay decay) {
  at::Tensor gradient = given;
  if (rates.weight_decay != 0 && decay == Decay::kOfWeights) {
    weights.mul_(1 - rates.lr * rates.weight_decay);
  } else if (rates.weight_decay != 0) {
    gradient = at::add(gradient, weights, rates.weight_decay);
  }
  moments.average.lerp_(gradient, 1 - rates.beta1);
  moments.square.mul_(rates.beta2).addcmul_(gradient, gradient, 1 - rates.beta2);
  at::Tensor square = moments.square;
  if (moments.most.defined()) {
    moments.most.copy_(at::maximum(moments.most, square));
    square = moments.most;
  }
  const at::Tensor step = count.to(at::kDouble);
  const at::Tensor size =
      at::div(at::native::wrapped_scalar_tensor(-rates.lr), correction(rates.beta1, step));
  const at::Tensor scale = correction(rates.beta2, step).sqrt();
  const at::Tensor divisor = square.sqrt().div_(scale.to(square.dtype())).add_(rates.eps);
  weights.add_(moments.average.mul(size.to(weights.dtype())).div_(divisor));
}

template <Decay decay>
void adam(at::TensorList weights, at::TensorList gradients, at::TensorList averages,
          at::TensorList squares, at::TensorList most, at::TensorList counts, double lr,
          double beta1, double beta2, double weight_decay, double eps, bool amsgrad, bool maximize,
          const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf) {
  TORCH_CHECK_NOT_IMPLEMENTED(!grad_scale && !found_inf,
                              "A fused optimizer that unscales gradients (GradScaler) is not "
                              "offered by djinnd. Use bfloat16, which needs none.");
  const size_t count = weights.size();
  TORCH_CHECK(gradients.size() == count && averages.size() == count && squares.size() == count &&
                  counts.size() == count && most.size() == (amsgrad ? count : 0),
              "An optimizer's lists must have as many tensors each.");
  const Rates rates{lr, beta1, beta2, weight_decay, eps};
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor gradient = maximize ? gradients[i].neg() : gradients[i];
    take_step(weights[i], gradient, {averages[i], squares[i], amsgrad ? most[i] : at::Tensor()},
              counts[i], rates, decay);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_fused_adamw_", &adam<Decay::kOfWeights>);
  library.impl("_fused_adam_", &adam<Decay::kInGradient>);
}

}  // namespace djinn::device
