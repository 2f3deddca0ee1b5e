// SPDX-License-Identifier: Apache-2.0

#include "python/device/structured.h"

#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/all_meta_dispatch.h>
#include <ATen/ops/any_meta_dispatch.h>
#include <ATen/ops/bitwise_and_meta_dispatch.h>
#include <ATen/ops/bitwise_not_meta_dispatch.h>
#include <ATen/ops/bitwise_or_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/cos_meta_dispatch.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq_meta_dispatch.h>
#include <ATen/ops/exp_meta_dispatch.h>
#include <ATen/ops/ge_meta_dispatch.h>
#include <ATen/ops/gelu_meta_dispatch.h>
#include <ATen/ops/gt_meta_dispatch.h>
#include <ATen/ops/le_meta_dispatch.h>
#include <ATen/ops/lt_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/ne_meta_dispatch.h>
#include <ATen/ops/neg_meta_dispatch.h>
#include <ATen/ops/pow_meta_dispatch.h>
#include <ATen/ops/rsqrt_meta_dispatch.h>
#include <ATen/ops/sigmoid_meta_dispatch.h>
#include <ATen/ops/silu_meta_dispatch.h>
#include <ATen/ops/sin_meta_dispatch.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/tanh_meta_dispatch.h>

#include <unordered_map>
#include <vector>

namespace djinn::device {
namespace {

namespace meta = at::meta;
using Computed = std::optional<at::Tensor>;
using Shape = Computed (*)(const Stack& stack);
using One = at::Tensor (*)(const at::Tensor& self);
using Two = at::Tensor (*)(const at::Tensor& self, const at::Tensor& other);
using TwoScaled = at::Tensor (*)(const at::Tensor& self, const at::Tensor& other,
                                 const at::Scalar& alpha);
using WithNumber = at::Tensor (*)(const at::Tensor& self, const at::Scalar& other);

template <One kShape>
Computed one(const Stack& stack) {
  return kShape(stack[0].toTensor());
}

template <Two kShape>
Computed two(const Stack& stack) {
  return kShape(stack[0].toTensor(), stack[1].toTensor());
}

template <TwoScaled kShape>
Computed two_scaled(const Stack& stack) {
  return kShape(stack[0].toTensor(), stack[1].toTensor(), stack[2].toScalar());
}

template <WithNumber kShape>
Computed with_number(const Stack& stack) {
  return kShape(stack[0].toTensor(), stack[1].toScalar());
}

Computed gelu(const Stack& stack) {
  return meta::gelu(stack[0].toTensor(), stack[1].toStringView());
}

Computed addmm(const Stack& stack) {
  return meta::addmm(stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(),
                     stack[3].toScalar(), stack[4].toScalar());
}

Computed mean(const Stack& stack) {
  const auto type = stack[3].toOptional<at::ScalarType>();
  if (stack[1].isNone()) return meta::mean(stack[0].toTensor(), {}, stack[2].toBool(), type);
  const std::vector<int64_t> dims = stack[1].toIntVector();
  return meta::mean(stack[0].toTensor(), dims, stack[2].toBool(), type);
}

bool is_bias_of(const c10::IValue& bias, const at::Tensor& weight) {
  if (bias.isNone()) return true;
  const at::Tensor& tensor = bias.toTensor();
  return !tensor.defined() || (tensor.dim() == 1 && tensor.size(0) == weight.size(0) &&
                               tensor.scalar_type() == weight.scalar_type());
}

// Linear has no structured function of its own. If the rows of the input are contiguous, so is the
// product.
Computed linear(const Stack& stack) {
  const at::Tensor& input = stack[0].toTensor();
  const at::Tensor& weight = stack[1].toTensor();
  const bool is_plain = input.dim() >= 2 && weight.dim() == 2 && input.numel() > 0 &&
                        input.is_contiguous() && input.size(-1) == weight.size(1) &&
                        input.scalar_type() == weight.scalar_type() && input.is_floating_point() &&
                        is_bias_of(stack[2], weight);
  if (!is_plain) return std::nullopt;
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, input.options());
}

const std::unordered_map<std::string, Shape>& shapes() {
  static const auto* const all = new std::unordered_map<std::string, Shape>{
      {"aten::add.Tensor", two_scaled<meta::add>},
      {"aten::addmm", addmm},
      {"aten::all", one<meta::all>},
      {"aten::any", one<meta::any>},
      {"aten::bitwise_and.Tensor", two<meta::bitwise_and>},
      {"aten::bitwise_not", one<meta::bitwise_not>},
      {"aten::bitwise_or.Tensor", two<meta::bitwise_or>},
      {"aten::bmm", two<meta::bmm>},
      {"aten::cos", one<meta::cos>},
      {"aten::div.Tensor", two<meta::div>},
      {"aten::eq.Scalar", with_number<meta::eq>},
      {"aten::eq.Tensor", two<meta::eq>},
      {"aten::exp", one<meta::exp>},
      {"aten::ge.Scalar", with_number<meta::ge>},
      {"aten::ge.Tensor", two<meta::ge>},
      {"aten::gelu", gelu},
      {"aten::gt.Scalar", with_number<meta::gt>},
      {"aten::gt.Tensor", two<meta::gt>},
      {"aten::le.Scalar", with_number<meta::le>},
      {"aten::le.Tensor", two<meta::le>},
      {"aten::linear", linear},
      {"aten::lt.Scalar", with_number<meta::lt>},
      {"aten::lt.Tensor", two<meta::lt>},
      {"aten::mean.dim", mean},
      {"aten::mm", two<meta::mm>},
      {"aten::mul.Tensor", two<meta::mul>},
      {"aten::ne.Scalar", with_number<meta::ne>},
      {"aten::ne.Tensor", two<meta::ne>},
      {"aten::neg", one<meta::neg>},
      {"aten::pow.Tensor_Scalar", with_number<meta::pow>},
      {"aten::rsqrt", one<meta::rsqrt>},
      {"aten::sigmoid", one<meta::sigmoid>},
      {"aten::silu", one<meta::silu>},
      {"aten::sin", one<meta::sin>},
      {"aten::sub.Tensor", two_scaled<meta::sub>},
      {"aten::tanh", one<meta::tanh>},
  };
  return *all;
}

}  // namespace

std::optional<at::Tensor> structured(const std::string& op, const Stack& stack) {
  const auto found = shapes().find(op);
  return found == shapes().end() ? std::nullopt : found->second(stack);
}

}  // namespace djinn::device
