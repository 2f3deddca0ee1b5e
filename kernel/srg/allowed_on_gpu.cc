// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>

#include "kernel/srg/allowed.h"

namespace djinn::srg {
namespace {

// Left out, though the host has them:
//   _grouped_mm, max_unpool and backward passes of pooling   their kernels believe indices
//   index_put, scatter with a source, index_add, cumsum      threads meet, and chance says whose
//                                                            element, or which sum, is last
//   convolution, batch_norm, what is recurrent               cuDNN's, of which nothing is shown
//   djinn:: but kv_append                                    have no kernel there
// An index out of bounds ends the process in the kernels of those that are here: embedding, gather,
// index, index_select, scatter.
constexpr auto kAllowedOnGpu = std::to_array<std::string_view>({
    "aten::_softmax",
    "aten::_to_copy",
    "aten::abs",
    "aten::add.Scalar",
    "aten::add.Tensor",
    "aten::add_.Tensor",
    "aten::addmm",
    "aten::alias",
    "aten::amax",
    "aten::amin",
    "aten::arange",
    "aten::arange.start",
    "aten::arange.start_step",
    "aten::argmax",
    "aten::argmin",
    "aten::as_strided",
    "aten::baddbmm",
    "aten::bitwise_and.Tensor",
    "aten::bitwise_not",
    "aten::bitwise_or.Tensor",
    "aten::bmm",
    "aten::cat",
    "aten::clamp",
    "aten::clamp.Tensor",
    "aten::clamp_",
    "aten::clone",
    "aten::constant_pad_nd",
    "aten::contiguous",
    "aten::copy_",
    "aten::cos",
    "aten::div.Scalar",
    "aten::div.Tensor",
    "aten::div_.Tensor",
    "aten::embedding",
    "aten::eq.Scalar",
    "aten::eq.Tensor",
    "aten::exp",
    "aten::expand",
    "aten::expm1",
    "aten::fill_.Scalar",
    "aten::floor",
    "aten::floor_divide",
    "aten::full",
    "aten::full_like",
    "aten::gather",
    "aten::ge.Scalar",
    "aten::ge.Tensor",
    "aten::gelu",
    "aten::gt.Scalar",
    "aten::gt.Tensor",
    "aten::index.Tensor",
    "aten::index_select",
    "aten::layer_norm",
    "aten::le.Scalar",
    "aten::le.Tensor",
    "aten::linear",
    "aten::log",
    "aten::log_sigmoid_forward",
    "aten::logical_and",
    "aten::logical_not",
    "aten::logical_or",
    "aten::logsumexp",
    "aten::lt.Scalar",
    "aten::lt.Tensor",
    "aten::masked_fill.Scalar",
    "aten::masked_fill_.Scalar",
    "aten::matmul",
    "aten::max.dim",
    "aten::maximum",
    "aten::mean.dim",
    "aten::min.dim",
    "aten::minimum",
    "aten::mm",
    "aten::mul.Scalar",
    "aten::mul.Tensor",
    "aten::mul_.Tensor",
    "aten::native_layer_norm",
    "aten::ne.Scalar",
    "aten::ne.Tensor",
    "aten::neg",
    "aten::new_ones",
    "aten::new_zeros",
    "aten::ones",
    "aten::ones_like",
    "aten::permute",
    "aten::polar",
    "aten::pow.Scalar",
    "aten::pow.Tensor_Scalar",
    "aten::pow.Tensor_Tensor",
    "aten::reciprocal",
    "aten::relu",
    "aten::repeat",
    "aten::reshape",
    "aten::rms_norm",
    "aten::rsqrt",
    "aten::rsub.Scalar",
    "aten::scalar_tensor",
    "aten::scaled_dot_product_attention",
    "aten::scatter.value",
    "aten::scatter_.value",
    "aten::select.int",
    "aten::sigmoid",
    "aten::silu",
    "aten::sin",
    "aten::slice.Tensor",
    "aten::softmax.int",
    "aten::softplus",
    "aten::split.Tensor",
    "aten::sqrt",
    "aten::squeeze.dim",
    "aten::stack",
    "aten::sub.Scalar",
    "aten::sub.Tensor",
    "aten::sum.dim_IntList",
    "aten::t",
    "aten::tanh",
    "aten::to.dtype",
    "aten::transpose.int",
    "aten::unsqueeze",
    "aten::view",
    "aten::view.dtype",
    "aten::where.self",
    "aten::zeros",
    "aten::zeros_like",
    "djinn::kv_append",
});

}  // namespace

std::span<const std::string_view> allowed_on_gpu() {
  return kAllowedOnGpu;
}

bool is_allowed_on_gpu(std::string_view qualified) {
  return std::ranges::binary_search(kAllowedOnGpu, qualified);
}

}  // namespace djinn::srg
