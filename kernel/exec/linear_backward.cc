// SPDX-License-Identifier: Apache-2.0

// aten::linear_backward, which LibTorch has for other devices than the CPU only: there autograd
// splits linear before its derivative. These are the calls that it then makes, so that a device
// which keeps linear whole trains to the same bits.
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "kernel/exec/own_operators.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Gives the gradients of input [..., in], weight [out, in] and bias [out]; one is undefined where
// the mask is false.
Gradients linear_backward(const at::Tensor& input, const at::Tensor& gradient,
                          const at::Tensor& weight, std::array<bool, 3> mask) {
  TORCH_CHECK_VALUE(weight.dim() == 2 && input.dim() >= 1 && gradient.dim() == input.dim() &&
                        input.size(-1) == weight.size(1) && gradient.size(-1) == weight.size(0),
                    "linear_backward: input, gradient and weight do not fit");
  const at::Tensor rows = gradient.reshape({-1, weight.size(0)});
  Gradients result;
  if (mask[0]) std::get<0>(result) = rows.mm(weight).reshape(input.sizes());
  if (mask[1]) std::get<1>(result) = rows.t().mm(input.reshape({-1, weight.size(1)}));
  if (mask[2]) std::get<2>(result) = rows.sum(0);
  return result;
}

}  // namespace

void define_linear_backward(OwnLibraries& libraries) {
  libraries.aten_cpu.impl("linear_backward", &linear_backward);
}

}  // namespace djinn::exec
