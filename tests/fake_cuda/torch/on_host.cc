// SPDX-License-Identifier: Apache-2.0

// Puts PyTorch's kernels for the host in the place of those for CUDA, as this library is loaded.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <cstring>
#include <utility>
#include <vector>

namespace djinn::fake_torch {
namespace {

// One call: what of its arguments is on the GPU, seen as the host's.
class HostCall {
 public:
  void take(c10::IValue& argument) {
    if (argument.isTensor()) {
      argument = seen(argument.toTensor());
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& one : argument.toTensorVector()) all.push_back(seen(one));
      argument = all;
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> all;
      for (const std::optional<at::Tensor>& one : argument.toOptionalTensorVector()) {
        all.push_back(one ? std::optional(seen(*one)) : std::nullopt);
      }
      argument = all;
    } else if (argument.isDevice() && argument.toDevice().is_cuda()) {
      argument = c10::Device(c10::kCPU);
    }
  }

  void give(c10::IValue& result) {
    if (result.isTensor()) {
      result = given(result.toTensor());
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& one : result.toTensorVector()) all.push_back(given(one));
      result = all;
    }
  }

 private:
  // What is empty may be an output that the operator makes as large as it wants.
  at::Tensor seen(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    const at::TensorOptions options = tensor.options().device(at::kCPU);
    at::Tensor host =
        tensor.numel() == 0
            ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
            : at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
    pairs_.emplace_back(host, tensor);
    return host;
  }

  at::Tensor given(const at::Tensor& host) {
    if (!host.defined() || !host.is_cpu()) return host;
    for (const auto& [seen_as, tensor] : pairs_) {
      if (!seen_as.is_same(host)) continue;
      if (tensor.numel() == 0 && host.numel() > 0) {
        tensor.resize_(host.sizes());
        const at::Tensor dense = host.contiguous();
        std::memcpy(tensor.mutable_data_ptr(), dense.const_data_ptr(), dense.nbytes());
      }
      return tensor;
    }
    const at::Tensor made =
        at::empty_strided(host.sizes(), host.strides(), host.options().device(at::kCUDA));
    if (host.numel() > 0) {
      std::memcpy(made.mutable_data_ptr(), host.const_data_ptr(), made.storage().nbytes());
    }
    return made;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

// A graph would not do again what is done here.
void refuse_in_capture(const c10::OperatorHandle& op) {
  using IsCapturing = bool();
  static auto* const is_capturing =
      reinterpret_cast<IsCapturing*>(::dlsym(RTLD_DEFAULT, "djinn_fake_is_capturing"));
  TORCH_CHECK(is_capturing != nullptr, "the fake runtime is not there");
  TORCH_CHECK(!is_capturing(), op.operator_name().name,
              " is computed by the host here, and so cannot be in a graph");
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_in_capture(op);
  const size_t arguments = op.schema().arguments().size();
  HostCall call;
  for (size_t i = stack->size() - arguments; i < stack->size(); ++i) call.take((*stack)[i]);
  op.callBoxed(stack);
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    call.give((*stack)[i]);
  }
}

// Attention by LibTorch's products: it has no other that is replaced.
int64_t choose_math(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                    const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;
}

constexpr const char* kOperators[] = {
    "_softmax",
    "add.Tensor",
    "add.out",
    "add_.Tensor",
    "addmm",
    "amax",
    "arange.start_out",
    "argmax",
    "baddbmm",
    "bitwise_and.Tensor",
    "bitwise_not",
    "bitwise_or.Tensor",
    "bmm",
    "cat",
    "clamp",
    "copy_",
    "cos",
    "cumsum",
    "div.Tensor",
    "eq.Scalar",
    "eq.Tensor",
    "exp",
    "fill_.Scalar",
    "ge.Scalar",
    "ge.Tensor",
    "gelu",
    "gt.Scalar",
    "gt.Tensor",
    "index.Tensor",
    "index_select",
    "le.Scalar",
    "le.Tensor",
    "logical_not",
    "lt.Scalar",
    "lt.Tensor",
    "masked_fill_.Scalar",
    "mean.dim",
    "mm",
    "mul.Tensor",
    "mul_.Tensor",
    "native_layer_norm",
    "ne.Scalar",
    "ne.Tensor",
    "neg",
    "pow.Scalar",
    "pow.Tensor_Scalar",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "sqrt",
    "sub.Tensor",
    "sum.dim_IntList",
    "tanh",
    "where.self",
    "zero_",
};

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  for (const char* const name : kOperators) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
  library.impl("_fused_sdp_choice", &choose_math);
}

}  // namespace
}  // namespace djinn::fake_torch
