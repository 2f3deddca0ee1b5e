// SPDX-License-Identifier: Apache-2.0

// Autocast on the device casts what autocast casts on the CPU: the operators are the CPU's, as this
// version of LibTorch registers them, and so are the results.
//
//   lower   to the dtype of the autocast region: where reduced precision is fast and good enough
//   widest  to the widest dtype among the operands
//   full    to float32: all others
#include <ATen/autocast_mode.h>

#include <array>

#include "python/device/recipe.h"
#include "python/device/storage.h"

namespace djinn::device {
namespace {

enum class Policy : uint8_t { kLower, kWidest, kFull };

constexpr std::array kLower{"aten::conv1d",
                            "aten::conv2d",
                            "aten::conv3d",
                            "aten::bmm",
                            "aten::mm",
                            "aten::linalg_vecdot",
                            "aten::baddbmm",
                            "aten::addmm",
                            "aten::_addmm_activation",
                            "aten::addbmm",
                            "aten::linear",
                            "aten::_convolution",
                            "aten::matmul",
                            "aten::conv_tbc",
                            "aten::mkldnn_rnn_layer",
                            "aten::conv_transpose1d",
                            "aten::conv_transpose2d",
                            "aten::conv_transpose3d",
                            "aten::prelu",
                            "aten::scaled_dot_product_attention",
                            "aten::_native_multi_head_attention"};
constexpr std::array kWidest{"aten::stack", "aten::cat", "aten::index_copy"};

template <typename Names>
bool contains(const Names& names, const std::string& name) {
  for (const char* const one : names) {
    if (name == one) return true;
  }
  return false;
}

Policy policy_of(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (contains(kLower, name)) return Policy::kLower;
  return contains(kWidest, name) ? Policy::kWidest : Policy::kFull;
}

template <typename F>
c10::IValue map_tensors(const c10::IValue& value, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& item : value.toTensorVector()) list.push_back(f(item));
  return list;
}

at::ScalarType target_of(Policy policy, const std::vector<c10::IValue>& arguments) {
  const at::ScalarType lower = at::autocast::get_autocast_dtype(kDeviceType);
  if (policy == Policy::kFull) return at::kFloat;
  at::ScalarType widest = lower;
  if (policy == Policy::kLower) return widest;
  for (const c10::IValue& argument : arguments) {
    map_tensors(argument, [&](const at::Tensor& tensor) {
      widest = at::autocast::prioritize(widest, tensor, kDeviceType);
      return tensor;
    });
  }
  return widest;
}

void autocast(const c10::OperatorHandle& op, c10::DispatchKeySet, std::vector<c10::IValue>* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  const auto first = stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size());
  const std::vector<c10::IValue> arguments(first, stack->end());
  const at::ScalarType target = target_of(policy_of(op), arguments);
  std::transform(arguments.begin(), arguments.end(), first, [target](const c10::IValue& value) {
    return map_tensors(value, [target](const at::Tensor& tensor) {
      return at::autocast::cached_cast(target, tensor, kDeviceType);
    });
  });
  op.callBoxed(stack);
}

}  // namespace

// Without this fallthrough autocast fails on the first operator.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  at::autocast::set_autocast_dtype(kDeviceType, at::autocast::get_autocast_dtype(at::kCPU));
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !name.name.starts_with("aten::")) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) continue;
    library.impl(qualified(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&autocast>());
  }
}

}  // namespace djinn::device
