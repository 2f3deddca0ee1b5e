// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/operators.h"

#include <algorithm>
#include <array>

namespace djinn::sched {
namespace {

struct Row {
  std::string_view name;
  Family family;
};

// The rows are sorted by name.
constexpr std::array<Row, 63> kTable{{
    {"aten::_softmax", Family::kSoftmax},
    {"aten::_to_copy", Family::kUnary},
    {"aten::_unsafe_view", Family::kView},
    {"aten::add", Family::kBinary},
    {"aten::amax", Family::kReduction},
    {"aten::batch_norm", Family::kNorm},
    {"aten::bmm", Family::kMatmul},
    {"aten::clone", Family::kUnary},
    {"aten::contiguous", Family::kUnary},
    {"aten::conv1d", Family::kConvolution},
    {"aten::conv2d", Family::kConvolution},
    {"aten::conv3d", Family::kConvolution},
    {"aten::convolution", Family::kConvolution},
    {"aten::cos", Family::kUnary},
    {"aten::div", Family::kBinary},
    {"aten::elu", Family::kActivation},
    {"aten::embedding", Family::kEmbedding},
    {"aten::exp", Family::kUnary},
    {"aten::expand", Family::kView},
    {"aten::flatten", Family::kView},
    {"aten::gelu", Family::kActivation},
    {"aten::group_norm", Family::kNorm},
    {"aten::hardswish", Family::kActivation},
    {"aten::layer_norm", Family::kNorm},
    {"aten::linear", Family::kLinear},
    {"aten::log_softmax", Family::kSoftmax},
    {"aten::masked_fill", Family::kUnary},
    {"aten::matmul", Family::kMatmul},
    {"aten::mean", Family::kReduction},
    {"aten::mish", Family::kActivation},
    {"aten::mm", Family::kMatmul},
    {"aten::mul", Family::kBinary},
    {"aten::native_layer_norm", Family::kNorm},
    {"aten::neg", Family::kUnary},
    {"aten::permute", Family::kView},
    {"aten::pow", Family::kUnary},
    {"aten::relu", Family::kActivation},
    {"aten::reshape", Family::kView},
    {"aten::rms_norm", Family::kNorm},
    {"aten::rsqrt", Family::kUnary},
    {"aten::rsub", Family::kBinary},
    {"aten::scaled_dot_product_attention", Family::kAttention},
    {"aten::select", Family::kView},
    {"aten::sigmoid", Family::kUnary},
    {"aten::silu", Family::kActivation},
    {"aten::sin", Family::kUnary},
    {"aten::slice", Family::kView},
    {"aten::softmax", Family::kSoftmax},
    {"aten::sqrt", Family::kUnary},
    {"aten::squeeze", Family::kView},
    {"aten::sub", Family::kBinary},
    {"aten::sum", Family::kReduction},
    {"aten::t", Family::kView},
    {"aten::tanh", Family::kUnary},
    {"aten::to", Family::kUnary},
    {"aten::transpose", Family::kView},
    {"aten::true_divide", Family::kBinary},
    {"aten::unsqueeze", Family::kView},
    {"aten::view", Family::kView},
    {"djinn::attention", Family::kAttention},
    {"djinn::kv_append", Family::kAppend},
    {"djinn::rms_norm", Family::kNorm},
    {"djinn::rope", Family::kRope},
}};

constexpr bool by_name(const Row& row, std::string_view name) {
  return row.name < name;
}

static_assert(std::is_sorted(kTable.begin(), kTable.end(),
                             [](const Row& a, const Row& b) { return a.name < b.name; }));

}  // namespace

Family family_of(std::string_view op) {
  const std::string_view name = base_name(op);
  const auto* row = std::lower_bound(kTable.begin(), kTable.end(), name, by_name);
  return row != kTable.end() && row->name == name ? row->family : Family::kOther;
}

std::string_view base_name(std::string_view op) {
  op = op.substr(0, op.find('.'));
  if (op.ends_with('_') && !op.ends_with("__")) op.remove_suffix(1);
  return op;
}

}  // namespace djinn::sched
