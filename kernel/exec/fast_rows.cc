// SPDX-License-Identifier: Apache-2.0

// djinn::rms_norm(Tensor x, Tensor? weight, float epsilon, bool from_one, bool contiguous)
//     -> Tensor
// djinn::layer_norm(Tensor x, Tensor? weight, Tensor? bias, float epsilon) -> Tensor
// djinn::gate(Tensor x, Tensor? factor, str activation, bool factor_first) -> Tensor
// djinn::rope(Tensor x, Tensor cos, Tensor sin, bool interleaved) -> Tensor
//
// Internal operators: what kernel/srg/rewrite makes of the nodes that compute a norm, an activation
// with the product behind it, and a rotary position embedding. Tensors of other types, or that lie
// otherwise, than the kernels take are computed as the graph said before. Results lie as they would
// then, for a graph may look at them by strides.
#include "kernel/exec/fast_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string_view>
#include <vector>

#include "kernel/base/isa_level.h"
#include "kernel/exec/as_before.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/one_thread.h"
#include "kernel/exec/own_operators.h"
#include "kernel/exec/shape_rules.h"
#include "kernel/exec/whole_vectors.h"

namespace djinn::exec {
namespace {

// Elements that are worth a thread.
constexpr int64_t kGrain = 16 * 1024;

at::Tensor dense_rows(const at::Tensor& tensor) {
  return row_stride(tensor) ? tensor : tensor.contiguous();
}

int64_t rows_of(const at::Tensor& tensor) {
  return tensor.numel() / tensor.size(-1);
}

// LibTorch cannot tell the place of a dimension without a step, be it of one element.
bool has_no_stride_of_zero(const at::Tensor& tensor) {
  return std::ranges::none_of(tensor.strides(), [](int64_t stride) { return stride == 0; });
}

// A weight or a bias of a norm.
using Vector = std::optional<at::Tensor>;

bool has_rows(const at::Tensor& x) {
  return element_of(x.scalar_type()) && x.dim() >= 1 && x.numel() > 0;
}

// Calls a kernel of x's rows.
template <typename Kernel, typename Call>
void compute_norm(const Kernel (&kernels)[kernels::kElements], Call& call, const at::Tensor& x,
                  const at::Tensor& y, const Vector& weight, double epsilon) {
  call.x = x.const_data_ptr();
  call.x_stride = row_stride(x).value();
  call.weight = weight ? weight->const_data_ptr() : nullptr;
  call.epsilon = static_cast<float>(epsilon);
  call.y = y.mutable_data_ptr();
  call.y_stride = y.size(-1);
  call.width = x.size(-1);
  const Kernel kernel = kernels[static_cast<size_t>(element_of(x.scalar_type()).value())];
  for_each_part(rows_of(x), std::max<int64_t>(kGrain / call.width, 1),
                [&](int64_t begin, int64_t end, int) { kernel(call, begin, end); });
}

// --- djinn::rms_norm

at::Tensor rms_norm(const at::Tensor& given, const Vector& weight, double epsilon, bool from_one,
                    bool contiguous) {
  if (!has_rows(given) || !is_dense_like(weight, given)) {
    const OneThread alone(true);
    return rms_norm_as_before(given, weight, epsilon, from_one, contiguous);
  }
  const at::Tensor x = dense_rows(given);
  const at::Tensor y = at::empty(x.sizes(), x.options());
  kernels::RmsNorm call;
  call.weight_offset = from_one ? 1.0f : 0.0f;
  compute_norm(fast_kernels().rows.rms_norm, call, x, y, weight, epsilon);
  return laid_out_norm(y, given, weight, epsilon, from_one, contiguous);
}

// --- djinn::layer_norm

at::Tensor layer_norm(const at::Tensor& given, const Vector& weight, const Vector& bias,
                      double epsilon) {
  if (!has_rows(given) || !is_dense_like(weight, given) || !is_dense_like(bias, given)) {
    const OneThread alone(true);
    return layer_norm_as_before(given, weight, bias, epsilon);
  }
  const at::Tensor x = dense_rows(given);
  const at::Tensor y = at::empty(x.sizes(), x.options());
  kernels::LayerNorm call;
  call.bias = bias ? bias->const_data_ptr() : nullptr;
  compute_norm(fast_kernels().rows.layer_norm, call, x, y, weight, epsilon);
  return y;
}

// LibTorch's kernel on meta is Python's.
at::Tensor layer_norm_on_meta(const at::Tensor& x, const Vector& weight, const Vector& bias,
                              double epsilon) {
  static const ShapeRule rule = shape_rule_of("aten::layer_norm");
  return rule({x, std::vector<int64_t>{x.size(-1)}, weight, bias, epsilon, true}).at(0);
}

// --- djinn::gate

kernels::Activation activation_named(c10::string_view name) {
  if (name == "silu") return kernels::Activation::kSilu;
  return name == "gelu" ? kernels::Activation::kGelu : kernels::Activation::kGeluTanh;
}

at::Tensor activated(const at::Tensor& x, kernels::Activation activation) {
  switch (activation) {
    case kernels::Activation::kSilu:
      return at::silu(x);
    case kernels::Activation::kGelu:
      return at::gelu(x);
    case kernels::Activation::kGeluTanh:
      break;
  }
  return at::gelu(x, "tanh");
}

// Takes integers, too, as its nodes do, and gives float32 of them.
at::Tensor composed_gelu(const at::Tensor& x) {
  const double root = std::sqrt(2.0 / std::numbers::pi);
  return (x * 0.5) * (at::tanh((x + at::pow(x, 3.0) * 0.044715) * root) + 1);
}

// PyTorch's own, of a type that has no kernel.
at::Tensor activated_in_vectors(const at::Tensor& x, kernels::Activation activation) {
  auto& dispatcher = c10::Dispatcher::singleton();
  static const auto silu = dispatcher.findSchemaOrThrow("aten::silu", ""),
                    gelu = dispatcher.findSchemaOrThrow("aten::gelu", "");
  const bool is_silu = activation == kernels::Activation::kSilu;
  std::vector<c10::IValue> stack{x};
  if (!is_silu) stack.emplace_back(activation == kernels::Activation::kGelu ? "none" : "tanh");
  const OneThread alone(true);
  call_in_vectors(is_silu ? silu : gelu, stack);
  return stack[0].toTensor();
}

at::Tensor own_gate(const at::Tensor& given, const std::optional<at::Tensor>& given_factor,
                    c10::string_view activation, bool factor_first, kernels::Element element) {
  const at::Tensor x = given.contiguous();
  const at::Tensor factor = given_factor ? given_factor->contiguous() : at::Tensor();
  const at::Tensor y = at::empty(x.sizes(), x.options());
  kernels::Gate call;
  call.activation = activation_named(activation);
  call.x = x.const_data_ptr();
  call.factor = factor.defined() ? factor.const_data_ptr() : nullptr;
  call.y = y.mutable_data_ptr();
  const kernels::GateKernel kernel = fast_kernels().rows.gate[static_cast<size_t>(element)];
  for_each_part(x.numel(), kGrain,
                [&](int64_t begin, int64_t end, int) { kernel(call, begin, end); });
  return laid_out_gate(y, given, given_factor, activation, factor_first);
}

at::Tensor gate(const at::Tensor& given, const std::optional<at::Tensor>& factor,
                c10::string_view activation, bool factor_first) {
  const auto element = element_of(given.scalar_type());
  const bool is_alike =
      !factor || (factor->scalar_type() == given.scalar_type() && factor->sizes() == given.sizes());
  if (element && is_alike) return own_gate(given, factor, activation, factor_first, *element);
  if (!given.is_floating_point()) {
    const OneThread alone(true);
    return gate_as_before(given, factor, activation, factor_first);
  }
  const at::Tensor y = element ? own_gate(given, {}, activation, false, *element)
                               : activated_in_vectors(given, activation_named(activation));
  if (!factor) return y;
  const OneThread alone(true);
  return factor_first ? *factor * y : y * *factor;
}

// --- djinn::rope

at::Tensor turned_halves(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
}

at::Tensor turned_pairs(const at::Tensor& x) {
  const at::Tensor first = x.slice(-1, 0, std::nullopt, 2),
                   second = x.slice(-1, 1, std::nullopt, 2);
  return at::stack({-second, first}, -1).view(x.sizes());
}

// Tells whether what is computed of x, element by element, lies as it does.
bool keeps_its_order(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() && x.stride(3) == 1 && has_no_stride_of_zero(x);
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                bool interleaved) {
  const auto element = element_of(x.scalar_type());
  if (!element || x.dim() != 4 || x.numel() == 0 || x.size(3) % 2 != 0 || x.stride(3) != 1 ||
      !has_row_for_each(x, cos) || !has_row_for_each(x, sin)) {
    const OneThread alone(true);
    return rope_as_before(x, cos, sin, interleaved);
  }
  const bool in_order = lies_in_order(x), kept = !in_order && keeps_its_order(x);
  const at::Tensor y = kept ? at::empty_like(x) : at::empty(x.sizes(), x.options());
  const kernels::RopeKernel kernel = fast_kernels().rows.rope[static_cast<size_t>(*element)];
  const auto bytes = static_cast<int64_t>(x.element_size());
  const int64_t heads = x.size(1), tokens = x.size(2);
  const auto place = [&](const at::Tensor& tensor, int64_t i) {
    const int64_t row = i / (heads * tokens), head = i / tokens % heads, token = i % tokens;
    return (row * step_of(tensor, 0) + head * step_of(tensor, 1) + token * step_of(tensor, 2)) *
           bytes;
  };
  const auto* const x_data = static_cast<const std::byte*>(x.const_data_ptr());
  const auto* const cos_data = static_cast<const std::byte*>(cos.const_data_ptr());
  const auto* const sin_data = static_cast<const std::byte*>(sin.const_data_ptr());
  auto* const y_data = static_cast<std::byte*>(y.mutable_data_ptr());
  for_each_part(
      x.size(0) * heads * tokens, std::max<int64_t>(kGrain / x.size(3), 1),
      [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          kernel({x_data + place(x, i), cos_data + place(cos, i), sin_data + place(sin, i),
                  y_data + place(y, i), x.size(3), interleaved});
        }
      });
  if (in_order || kept) return y;
  return lying_as(rope_as_before(on_meta(x), on_meta(cos), on_meta(sin), interleaved), y);
}

}  // namespace

bool is_dense_like(const Vector& vector, const at::Tensor& x) {
  return !vector || (vector->scalar_type() == x.scalar_type() && vector->dim() == 1 &&
                     vector->size(0) == x.size(-1) && vector->stride(0) == 1);
}

bool has_row_for_each(const at::Tensor& x, const at::Tensor& other) {
  if (other.dim() != 4 || other.scalar_type() != x.scalar_type()) return false;
  if (other.size(3) != x.size(3) || other.stride(3) != 1) return false;
  for (int64_t d = 0; d < 3; ++d) {
    if (other.size(d) != x.size(d) && other.size(d) != 1) return false;
  }
  return true;
}

at::Tensor laid_out_norm(const at::Tensor& y, const at::Tensor& x, const Vector& weight,
                         double epsilon, bool from_one, bool contiguous) {
  if (contiguous || lies_in_order(x)) return y;
  const Vector weight_on_meta = weight ? Vector(on_meta(*weight)) : std::nullopt;
  return lying_as(rms_norm_as_before(on_meta(x), weight_on_meta, epsilon, from_one, false), y);
}

at::Tensor laid_out_gate(const at::Tensor& y, const at::Tensor& x,
                         const std::optional<at::Tensor>& factor, c10::string_view activation,
                         bool factor_first) {
  if (lies_in_order(x) && (!factor || lies_in_order(*factor))) return y;
  const auto factor_on_meta = factor ? std::optional(on_meta(*factor)) : std::nullopt;
  return lying_as(gate_as_before(on_meta(x), factor_on_meta, activation, factor_first), y);
}

at::Tensor on_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

at::Tensor lying_as(const at::Tensor& other, const at::Tensor& result) {
  if (result.strides() == other.strides()) return result;
  const at::Tensor copy = at::empty_strided(other.sizes(), other.strides(), result.options());
  return copy.copy_(result);
}

at::Tensor rms_norm_as_before(const at::Tensor& x, const Vector& weight, double epsilon,
                              bool from_one, bool contiguous) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor mean = wide.square().mean(-1, true);
  const at::Tensor normed = wide * (mean + epsilon).rsqrt();
  const at::Tensor y = !weight     ? normed.to(x.scalar_type())
                       : !from_one ? *weight * normed.to(x.scalar_type())
                                   : (normed * (weight->to(at::kFloat) + 1)).to(x.scalar_type());
  return contiguous ? y.contiguous() : y;
}

at::Tensor layer_norm_as_before(const at::Tensor& x, const Vector& weight, const Vector& bias,
                                double epsilon) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, epsilon);
}

at::Tensor gate_as_before(const at::Tensor& x, const std::optional<at::Tensor>& factor,
                          c10::string_view name, bool factor_first) {
  if (!factor && !x.is_floating_point()) return composed_gelu(x);
  const at::Tensor y = activated(x, activation_named(name));
  if (!factor) return y;
  return factor_first ? *factor * y : y * *factor;
}

at::Tensor rope_as_before(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                          bool interleaved) {
  return x * cos + (interleaved ? turned_pairs(x) : turned_halves(x)) * sin;
}

// Of the process: written before anything computes.
static std::optional<IsaLevel> taken_isa;
static KernelTable taken_kernels;

IsaLevel fast_isa() {
  return taken_isa.value_or(best_isa_level());
}

void CpuExecutor::limit_isa(IsaLevel level) {
  taken_isa = usable_isa_level(level);  // which asks, so before the process is confined
}

std::string_view CpuExecutor::isa() const {
  return name_of(fast_isa());
}

void CpuExecutor::take_kernels(const KernelTable& table) {
  taken_kernels = table;
}

std::optional<KernelTable> CpuExecutor::kernels() const {
  return taken_kernels;
}

const kernels::Kernels& fast_kernels() {
  return kernels::kernels_of(fast_isa());
}

std::optional<kernels::Element> element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return kernels::Element::kFloat32;
    case at::kBFloat16:
      return kernels::Element::kBFloat16;
    case at::kHalf:
      return kernels::Element::kFloat16;
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> row_stride(const at::Tensor& tensor) {
  if (tensor.stride(-1) != 1 && tensor.size(-1) > 1) return {};
  std::optional<int64_t> stride;  // of the rows
  int64_t next = 0;               // what the next dimension's must be
  for (int64_t d = tensor.dim() - 2; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (stride && tensor.stride(d) != next) return {};
    if (!stride) stride = tensor.stride(d);
    next = tensor.stride(d) * tensor.size(d);
  }
  return stride.value_or(0);
}

bool lies_in_order(const at::Tensor& tensor) {
  if (!has_no_stride_of_zero(tensor)) return false;
  int64_t next = 1;
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (tensor.stride(d) < next) return false;
    next = tensor.stride(d) * tensor.size(d);
  }
  return true;
}

void define_fast_rows(OwnLibraries& libraries) {
  libraries.definition.def(
      "rms_norm(Tensor x, Tensor? weight, float epsilon, bool from_one, bool contiguous) -> "
      "Tensor");
  libraries.cpu.impl("rms_norm", &rms_norm);
  libraries.meta.impl("rms_norm", &rms_norm_as_before);
  libraries.definition.def(
      "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float epsilon) -> Tensor");
  libraries.cpu.impl("layer_norm", &layer_norm);
  libraries.meta.impl("layer_norm", &layer_norm_on_meta);
  libraries.definition.def(
      "gate(Tensor x, Tensor? factor, str activation, bool factor_first) -> Tensor");
  libraries.cpu.impl("gate", &gate);
  libraries.meta.impl("gate", &gate_as_before);
  libraries.definition.def("rope(Tensor x, Tensor cos, Tensor sin, bool interleaved) -> Tensor");
  libraries.cpu.impl("rope", &rope);
  libraries.meta.impl("rope", &rope_as_before);
}

}  // namespace djinn::exec
