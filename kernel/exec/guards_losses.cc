// SPDX-License-Identifier: Apache-2.0

// These are the guards of losses and their gradients.
#include <ATen/core/Reduction.h>

#include "kernel/exec/guard_checks.h"
#include "kernel/exec/guards.h"

namespace djinn::exec {
namespace {

// The reduction must be none, mean or sum.
template <size_t kPosition>
void require_reduction(const Stack& stack) {
  const int64_t reduction = stack[kPosition].toInt();
  TORCH_CHECK_VALUE(reduction >= 0 && reduction <= 2, "reduction must be 0, 1 or 2");
}

// On integers the kernel divides by beta as an integer, which is 0 for a beta below 1.
void smooth_l1_loss_backward(const Stack& stack) {
  require_reduction<3>(stack);
  for (const size_t i : {0, 1, 2}) {
    TORCH_CHECK_TYPE(stack[i].toTensor().is_floating_point(), "argument ", i,
                     " must be of floating-point numbers");
  }
}

// Loops run over what input and target have in common, and leave the rest of the result unwritten.
template <size_t kInput>
void binary_cross_entropy(const Stack& stack) {
  require_same_sizes(stack, kInput, kInput + 1);
  require_expands(stack, kInput + 2, stack[kInput].toTensor().sizes());
  require_reduction<kInput + 3>(stack);
}

void binary_cross_entropy_backward(const Stack& stack) {
  binary_cross_entropy<1>(stack);
  require_expands(stack, 0, stack[1].toTensor().sizes());
}

// The loss of no rows is one number that nobody writes.
void multi_margin_loss(const Stack& stack) {
  require_reduction<5>(stack);
  TORCH_CHECK_VALUE(stack[5].toInt() == at::Reduction::None || stack[0].toTensor().numel() > 0,
                    "the input has no rows");
}

// There must be a gradient for each row where nothing is reduced, else one.
void multi_margin_loss_backward(const Stack& stack) {
  require_reduction<6>(stack);
  const at::Tensor& gradient = stack[0].toTensor();
  const at::Tensor& input = stack[1].toTensor();
  TORCH_CHECK_VALUE(input.dim() <= 2, "the input has one row, or rows");
  const bool has_rows = stack[6].toInt() == at::Reduction::None && input.dim() == 2;
  const int64_t gradients = has_rows ? input.size(0) : 1;
  TORCH_CHECK_VALUE(gradient.dim() <= 1 && gradient.numel() == gradients, "the gradient must have ",
                    gradients, " elements");
}

void nll_loss_backward(const Stack& stack) {
  require_reduction<4>(stack);
  const at::Tensor& input = stack[1].toTensor();
  TORCH_CHECK_VALUE(input.dim() >= 1, "the input has no classes");
  const int64_t classes = input.size(input.dim() == 1 ? 0 : 1);
  require_indices(stack[2].toTensor(), classes, stack[5].toInt());
}

constexpr auto kLossGuards = std::to_array<GuardRow>({
    {"aten::binary_cross_entropy", binary_cross_entropy<0>},
    {"aten::binary_cross_entropy_backward", binary_cross_entropy_backward},
    {"aten::binary_cross_entropy_with_logits", require_reduction<4>},
    {"aten::huber_loss", require_reduction<2>},
    {"aten::huber_loss_backward", require_reduction<3>},
    {"aten::mse_loss", require_reduction<2>},
    {"aten::mse_loss_backward", require_reduction<3>},
    {"aten::multi_margin_loss", multi_margin_loss},
    {"aten::multi_margin_loss_backward", multi_margin_loss_backward},
    {"aten::nll_loss2d_backward", nll_loss_backward},
    {"aten::nll_loss2d_forward", require_reduction<3>},
    {"aten::nll_loss_backward", nll_loss_backward},
    {"aten::nll_loss_forward", require_reduction<3>},
    {"aten::smooth_l1_loss", require_reduction<2>},
    {"aten::smooth_l1_loss_backward", smooth_l1_loss_backward},
    {"aten::soft_margin_loss", require_reduction<2>},
    {"aten::soft_margin_loss_backward", require_reduction<3>},
});

}  // namespace

std::span<const GuardRow> losses_guards() {
  return kLossGuards;
}

}  // namespace djinn::exec
