// SPDX-License-Identifier: Apache-2.0

// One boxed function decides what becomes of a call of every other operator.
//
//   recorded   operators on the allow-list, which djinnd has, too
//   lowered    out= and in-place forms of those: the functional form, then a copy; and other names
//   refused    all else, with the way out
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/tensor_split.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "kernel/srg/allowed.h"
#include "python/device/device.h"
#include "python/device/recurrent.h"

namespace djinn::device {
namespace {

enum class Way : uint8_t { kRecord, kRename, kInPlace, kOut, kRefuse };

struct Plan {
  Way way = Way::kRefuse;
  std::optional<c10::OperatorHandle> functional;  // kRename, kInPlace, kOut
  size_t outs = 0;                                // kOut: trailing arguments
  bool factory = false;                           // kOut: the functional form takes a dtype, too
  bool exact = false;                             // kOut: casts nothing
  bool attention = false;                         // kRecord: may draw (dropout)
  bool foreach = false;                           // kRecord: takes lists of any length
  bool recurrent = false;                         // kRecord: may draw, or have projections
};

// A factory takes these arguments, and its out= form does not.
constexpr std::array kOptions{"dtype", "layout", "device", "pin_memory"};

// The CPU kernels of these operators do not cast a result to an out= of another dtype, although
// their meta kernels do.
constexpr std::array<std::string_view, 45> kExactOuts{
    "aten::_linalg_eigh.eigenvalues",
    "aten::_linalg_slogdet.sign",
    "aten::_linalg_solve_ex.result",
    "aten::_softmax.out",
    "aten::all.all_out",
    "aten::amax.out",
    "aten::amin.out",
    "aten::aminmax.out",
    "aten::any.all_out",
    "aten::avg_pool3d.out",
    "aten::bitwise_not.out",
    "aten::bucketize.Tensor_out",
    "aten::complex.out",
    "aten::conj_physical.out",
    "aten::frexp.Tensor_out",
    "aten::gelu.out",
    "aten::hardshrink.out",
    "aten::heaviside.out",
    "aten::histc.out",
    "aten::index_add.out",
    "aten::index_copy.out",
    "aten::index_select.out",
    "aten::isin.Tensor_Tensor_out",
    "aten::kthvalue.values",
    "aten::linalg_cross.out",
    "aten::linalg_lu_factor_ex.out",
    "aten::linalg_qr.out",
    "aten::linalg_solve_triangular.out",
    "aten::log_sigmoid_forward.output",
    "aten::masked_select.out",
    "aten::nan_to_num.out",
    "aten::native_batch_norm.out",
    "aten::neg.out",
    "aten::nonzero.out",
    "aten::renorm.out",
    "aten::round.decimals_out",
    "aten::round.out",
    "aten::scatter_reduce.two_out",
    "aten::searchsorted.Tensor_out",
    "aten::softplus.out",
    "aten::softshrink.out",
    "aten::sort.values_stable",
    "aten::take.out",
    "aten::tril.out",
    "aten::triu.out",
};

std::string refusal(const c10::OperatorHandle& op) {
  return qualified(op.operator_name()) +
         " is not offered by djinnd: it is not among the operators that a graph may call. Compute "
         "it on the CPU: call .cpu() on its tensors, and .to('remote_accelerator:0') on the "
         "result.";
}

bool same_arguments(const c10::FunctionSchema& a, const c10::FunctionSchema& b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (a.arguments()[i].name() != b.arguments()[i].name() ||
        *a.arguments()[i].real_type() != *b.arguments()[i].real_type()) {
      return false;
    }
  }
  return true;
}

bool takes_options(const c10::FunctionSchema& schema, size_t first) {
  if (schema.arguments().size() != first + kOptions.size()) return false;
  for (size_t i = 0; i < kOptions.size(); ++i) {
    if (schema.arguments()[first + i].name() != kOptions[i]) return false;
  }
  return true;
}

// Gives the overload of that name that takes the first `count` arguments of schema (and a factory's
// options, if `factory`) and writes none of them.
std::optional<c10::OperatorHandle> find_functional(const std::string& name,
                                                   const c10::FunctionSchema& schema, size_t count,
                                                   bool factory = false) {
  static const auto* const overloads = [] {
    auto* map = new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
      (*map)[op.name].push_back(op);
    }
    return map;
  }();
  const auto found = overloads->find(name);
  if (found == overloads->end()) return std::nullopt;
  for (const c10::OperatorName& overload : found->second) {
    const auto op = c10::Dispatcher::singleton().findSchema(overload);
    if (!op || op->schema().is_mutable()) continue;
    const bool fits =
        factory ? takes_options(op->schema(), count) : op->schema().arguments().size() == count;
    if (fits && same_arguments(op->schema(), schema, count)) return op;
  }
  return std::nullopt;
}

size_t count_outs(const c10::FunctionSchema& schema) {
  size_t count = 0;
  for (const c10::Argument& argument : schema.arguments()) count += argument.is_out() ? 1 : 0;
  return count;
}

// Tells whether the operator draws random numbers. ATen makes the functional forms of these from
// in-place ones; random.cc has those that djinnd offers.
bool draws(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

// __lshift__ and __rshift__ have kernels of their own, which give the same bits as these.
std::string other_name(const std::string& name) {
  if (name.ends_with("lshift__")) return "aten::bitwise_left_shift";
  if (name.ends_with("rshift__")) return "aten::bitwise_right_shift";
  return name.ends_with("_") ? name.substr(0, name.size() - 1) : name;
}

Plan make_plan(const c10::OperatorHandle& op) {
  const std::string name = qualified(op.operator_name());
  if (srg::is_allowed(name)) {
    Plan plan;
    plan.way = Way::kRecord;
    plan.attention = name == "aten::scaled_dot_product_attention";
    plan.foreach = name.starts_with("aten::_foreach_");
    plan.recurrent = is_recurrent(name);
    return plan;
  }
  if (draws(op)) return {};
  const c10::FunctionSchema& schema = op.schema();
  const size_t all = schema.arguments().size();
  Plan plan;
  plan.outs = count_outs(schema);
  if (plan.outs > 0) {
    plan.functional = find_functional(schema.name(), schema, all - plan.outs);
    plan.factory = !plan.functional;
    if (plan.factory) {
      plan.functional = find_functional(schema.name(), schema, all - plan.outs, true);
    }
    plan.exact = std::ranges::find(kExactOuts, name) != kExactOuts.end();
    if (plan.functional) plan.way = Way::kOut;
  } else if (const std::string name_here = other_name(schema.name());
             name_here != schema.name() &&
             schema.arguments()[0].type()->kind() != c10::TypeKind::ListType) {
    plan.functional = find_functional(name_here, schema, all);
    if (plan.functional) plan.way = schema.is_mutable() ? Way::kInPlace : Way::kRename;
  }
  return plan;
}

const Plan& plan_for(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, Plan> plans;
  auto found = plans.find(op);
  if (found == plans.end()) found = plans.emplace(op, make_plan(op)).first;
  return found->second;
}

// --- operands on the CPU

// Gives the bytes from a tensor's first element to the end of its last.
size_t extent_of(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

// Keeps the tensor's layout in memory, by which kernels choose their order of summation, but leaves
// out gaps.
at::Tensor to_device(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu(),
              "Expected all tensors to be on the same device, but found "
              "one on ",
              tensor.device(), " beside those of djinnd; move it with .to().");
  at::Tensor ready = tensor.resolve_conj().resolve_neg();
  if (extent_of(ready) > ready.nbytes()) ready = ready.clone(at::MemoryFormat::Preserve);
  const std::span bytes(static_cast<const std::byte*>(ready.const_data_ptr()), extent_of(ready));
  Device::get().count_mixed();
  return strided_tensor(c10::DispatchKey::PrivateUse1, as_torch(upload(bytes, ready.scalar_type())),
                        ready.scalar_type(), ready.sizes(), ready.strides(), 0);
}

bool must_move(const at::Tensor& tensor) {
  return tensor.defined() && !is_ours(tensor) &&
         !(tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number());
}

c10::IValue moved(const c10::IValue& value) {
  return with_tensors(value, [](const at::Tensor& tensor) {
    return must_move(tensor) ? to_device(tensor) : tensor;
  });
}

// --- the ways

void run_functional(const c10::OperatorHandle& op, Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(&stack);
}

void give(const at::Tensor& result, const at::Tensor& out) {
  const at::AutoDispatchBelowADInplaceOrView below;
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "result type ",
              result.scalar_type(), " can't be cast to the desired output type ",
              out.scalar_type());
  if (out.sizes() != result.sizes()) out.resize_(result.sizes());
  out.copy_(result);
}

// Some functional forms are made of their in-place or out= forms, and would come back here; this
// marks that one is being called.
class Lowering {
 public:
  explicit Lowering(const c10::OperatorHandle& op) : op_(op) {
    TORCH_CHECK_NOT_IMPLEMENTED(!under_way().contains(op_), refusal(op_));
    under_way().insert(op_);
  }
  ~Lowering() { under_way().erase(op_); }
  Lowering(const Lowering&) = delete;
  Lowering& operator=(const Lowering&) = delete;

 private:
  static std::unordered_set<c10::OperatorHandle>& under_way() {
    thread_local std::unordered_set<c10::OperatorHandle> operators;
    return operators;
  }
  const c10::OperatorHandle op_;
};

void lower_in_place(const Plan& plan, Stack& stack) {
  const at::Tensor self = stack[0].toTensor();
  run_functional(*plan.functional, stack);
  TORCH_CHECK(stack[0].toTensor().sizes() == self.sizes(), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", stack[0].toTensor().sizes());
  give(stack[0].toTensor(), self);
  stack.assign(1, self);
}

// If the result has another dtype, an out= is accepted where the CPU accepts it.
void check_dtypes(const c10::OperatorHandle& op, const Plan& plan, Stack arguments,
                  const Stack& results, const std::vector<at::Tensor>& outs) {
  bool casts = false;
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::ScalarType type = results[i].toTensor().scalar_type();
    if (outs[i].scalar_type() == type) continue;
    TORCH_CHECK(!plan.exact, "Expected out tensor to have dtype ", type, ", but got ",
                outs[i].scalar_type(), " instead");
    casts = true;
  }
  if (!casts) return;
  for (size_t i = 0; i < outs.size(); ++i) {
    arguments.emplace_back(
        at::empty(results[i].toTensor().sizes(), outs[i].options().device(c10::kMeta)));
  }
  check_on_meta(op, arguments);
}

void lower_out(const c10::OperatorHandle& op, const Plan& plan, Stack& stack) {
  std::vector<at::Tensor> outs;
  for (size_t i = stack.size() - plan.outs; i < stack.size(); ++i) {
    outs.push_back(stack[i].toTensor());
  }
  stack.resize(stack.size() - plan.outs);
  const Stack arguments = stack;
  if (plan.factory) {
    stack.emplace_back(outs[0].scalar_type());
    stack.emplace_back();
    stack.emplace_back(outs[0].device());
    stack.emplace_back();
  }
  run_functional(*plan.functional, stack);
  check_dtypes(op, plan, arguments, stack, outs);
  for (size_t i = 0; i < outs.size(); ++i) give(stack[i].toTensor(), outs[i]);
  stack.assign(outs.begin(), outs.end());
}

// --- lists

// A call handles at most this many tensors, so that a run may bind them and write them in place.
constexpr size_t kForeachMax = 64;

size_t longest_list(const Stack& arguments) {
  size_t longest = 0;
  for (const c10::IValue& value : arguments) {
    if (value.isTensorList()) longest = std::max(longest, value.toTensorList().size());
  }
  return longest;
}

// Gives elements [first, first + count) of a list, or of a tensor that has a number for each.
c10::IValue part_of(const c10::IValue& value, const c10::Argument& formal, size_t first,
                    size_t count) {
  if (value.isTensor() && formal.name() == "scalars") {
    return value.toTensor().narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(count));
  }
  if (!value.isList()) return value;
  const c10::List<c10::IValue> all = value.toList();
  c10::impl::GenericList part(all.elementType());
  for (size_t i = first; i < first + count; ++i) part.push_back(all.get(i));
  return part;
}

void call_in_parts(const c10::OperatorHandle& op, Stack& arguments) {
  const size_t all = longest_list(arguments);
  c10::List<at::Tensor> results;
  for (size_t first = 0; first < all; first += kForeachMax) {
    Stack part;
    for (size_t i = 0; i < arguments.size(); ++i) {
      part.push_back(part_of(arguments[i], op.schema().arguments()[i], first,
                             std::min(kForeachMax, all - first)));
    }
    Device::get().call(op, part);
    if (part.empty()) continue;
    for (const at::Tensor& result : part[0].toTensorVector()) results.push_back(result);
  }
  arguments.clear();
  if (!op.schema().returns().empty()) arguments.emplace_back(std::move(results));
}

// Tells whether both kernels of the CPU, flash and math, are enabled
// (torch.nn.attention.sdpa_kernel).
bool all_attention_is_enabled() {
  return at::globalContext().userEnabledFlashSDP() && at::globalContext().userEnabledMathSDP();
}

// Tells whether the leading dimensions broadcast, as in products of matrices. A graph cannot hold
// such a call whole.
bool ranks_differ(const Stack& attention) {
  const int64_t rank = attention[0].toTensor().dim();
  return attention[1].toTensor().dim() != rank || attention[2].toTensor().dim() != rank;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const Plan& plan = plan_for(op);
  const size_t count = op.schema().arguments().size();
  Stack arguments(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  stack->resize(stack->size() - count);
  switch (plan.way) {
    case Way::kRecord:
      // Dropout inside attention is taken apart, because its draws must carry seed and offset. So
      // is attention if this process has disabled a kernel, because djinnd would not know.
      if (plan.attention &&
          (arguments[4].toDouble() > 0 || !all_attention_is_enabled() || ranks_differ(arguments))) {
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
        break;
      }
      for (c10::IValue& argument : arguments) argument = moved(argument);
      if (plan.recurrent && needs_parts(arguments)) {
        run_in_parts(qualified(op.operator_name()), arguments);
      } else if (plan.foreach && longest_list(arguments) > kForeachMax) {
        call_in_parts(op, arguments);
      } else {
        Device::get().call(op, arguments);
      }
      break;
    case Way::kRename:
      run_functional(*plan.functional, arguments);
      break;
    case Way::kInPlace: {
      const Lowering lowering(op);
      lower_in_place(plan, arguments);
      break;
    }
    case Way::kOut: {
      const Lowering lowering(op);
      lower_out(op, plan, arguments);
      break;
    }
    case Way::kRefuse:
      TORCH_CHECK_NOT_IMPLEMENTED(false, refusal(op));
  }
  stack->insert(stack->end(), arguments.begin(), arguments.end());
}

// --- composites that djinnd executes whole

bool is_differentiated(const Stack& stack, size_t count) {
  if (!at::GradMode::is_enabled()) return false;
  const auto needs_gradient = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
  return std::any_of(
      stack.end() - static_cast<ptrdiff_t>(count), stack.end(), [&](const c10::IValue& value) {
        if (value.isTensor()) return needs_gradient(value.toTensor());
        return value.isTensorList() && std::ranges::any_of(value.toTensorVector(), needs_gradient);
      });
}

// Calls the code that is the operator's kernel on the CPU; a recurrent network's would choose by
// the device.
void take_apart(const c10::OperatorHandle& op, Stack* stack) {
  const std::string name = qualified(op.operator_name());
  if (!is_recurrent(name)) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return;
  }
  const auto count = static_cast<ptrdiff_t>(op.schema().arguments().size());
  Stack arguments(stack->end() - count, stack->end());
  stack->resize(stack->size() - static_cast<size_t>(count));
  run_in_parts(name, arguments);
  stack->insert(stack->end(), arguments.begin(), arguments.end());
}

// If a gradient is to come, these operators are taken apart by their composite code, which is their
// kernel on the CPU and has its bits. Otherwise autograd has no part in them.
void whole(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  if (is_differentiated(*stack, op.schema().arguments().size())) return take_apart(op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(stack);
}

// --- who is registered by name

constexpr std::array kWhole{"aten::linear",
                            "aten::matmul",
                            "aten::layer_norm",
                            "aten::rms_norm",
                            "aten::scaled_dot_product_attention",
                            "aten::lstm.input",
                            "aten::gru.input",
                            "aten::rnn_tanh.input",
                            "aten::rnn_relu.input"};

// This operator is a composite on other devices and has its own kernel on the CPU, so it is one
// call here, too.
constexpr std::array kOwnOnCpu{"aten::mish_backward"};

// The kernels of these upload, copy or make tensors, and call operators that would call them again.
constexpr std::array kLeft{"aten::_to_copy", "aten::clone", "aten::contiguous", "aten::copy_",
                           "aten::detach",   "aten::alias", "aten::lift_fresh", "aten::to"};

bool returns_views(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

// Registered by name, these stay one call. Otherwise a structured operator would come as its out=
// form after an allocation, and a factory as an empty tensor that is filled.
bool by_name(const c10::OperatorHandle& op, const std::string& name) {
  for (const char* const left : kLeft) {
    if (op.schema().name() == left) return false;
  }
  if (!srg::is_allowed(name)) return false;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
    return true;
  }
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !returns_views(op.schema());
}

const std::unordered_set<std::string>& made_here() {
  static const auto* const names = new std::unordered_set<std::string>{
      "aten::empty.memory_format", "aten::empty_strided", "aten::as_strided", "aten::view",
      "aten::_reshape_alias",      "aten::unfold",        "aten::resize_",    "aten::equal"};
  return *names;
}

void register_by_name(torch::Library& library) {
  for (const c10::OperatorName& op_name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(op_name);
    const std::string name = qualified(op_name);
    if (!op || !name.starts_with("aten::") || made_here().contains(name)) continue;
    if (!by_name(*op, name)) continue;
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  for (const char* const whole : kWhole) {
    library.impl(whole, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  for (const char* const own : kOwnOnCpu) {
    library.impl(own, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

// --- what backward and fast paths call by other names

// The indices are checked here, though the name says that they need not be.
at::Tensor& index_put_impl(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                           const at::Tensor& values, bool accumulate, bool) {
  return self.index_put_(indices, values, accumulate);
}

// In training batch_norm changes the running statistics, which its schema does not say. So the form
// that returns the new ones is recorded.
using BatchNorm = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
BatchNorm batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                     const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mean,
                     const std::optional<at::Tensor>& variance, bool training, double momentum,
                     double eps) {
  if (training && mean && mean->defined() && variance && variance->defined()) {
    auto [output, save_mean, save_deviation, new_mean, new_variance] =
        at::_native_batch_norm_legit_functional(input, weight, bias, *mean, *variance, training,
                                                momentum, eps);
    mean->copy_(new_mean);
    variance->copy_(new_variance);
    return {output, save_mean, save_deviation};
  }
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_batch_norm", "");
  Stack stack{input, weight, bias, mean, variance, training, momentum, eps};
  for (c10::IValue& argument : stack) argument = moved(argument);
  Device::get().call(op, stack);
  return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor()};
}

// Counts integers exactly, in float64. Accelerators count integers too; the CPU does not.
at::Tensor histogram(const at::Tensor& self, int64_t bins, const at::Scalar& min,
                     const at::Scalar& max) {
  if (c10::isIntegralType(self.scalar_type(), false)) {
    return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::histc", "");
  Stack stack{self, bins, min, max};
  Device::get().call(op, stack);
  return stack[0].toTensor();
}

// This is the only split whose number of results depends on data. The data is read first, as on the
// CPU.
std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& where, int64_t dim) {
  TORCH_CHECK(where.scalar_type() == at::kLong,
              "tensor_split expected tensor_indices_or_sections to have dtype of long, but got ",
              where.scalar_type());
  TORCH_CHECK(where.dim() <= 1,
              "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or "
              "one-dimensional tensor, but got a tensor with ",
              where.dim(), " dims");
  const at::Tensor numbers = where.cpu().contiguous();
  if (where.dim() == 0) return at::tensor_split(self, numbers.item<int64_t>(), dim);
  const at::IntArrayRef indices(numbers.const_data_ptr<int64_t>(),
                                static_cast<size_t>(numbers.numel()));
  return at::tensor_split(self, indices, dim);
}

// The device has no nested tensors, so nn.TransformerEncoder takes its path for dense ones.
bool never_nested(const at::Tensor&, const at::Tensor&) {
  return false;
}

// Asks for the CPU's choice, which depends on shapes and dtypes only, so attention has the same
// bits.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  return at::_ops::_fused_sdp_choice::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query,
                                                 key, value, mask, dropout, is_causal, scale,
                                                 enable_gqa);
}

}  // namespace
}  // namespace djinn::device

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &djinn::device::choose_attention)
}  // namespace at::native

namespace djinn::device {

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  register_by_name(library);
  library.impl("_index_put_impl_", &index_put_impl);
  library.impl("native_batch_norm", &batch_norm);
  library.impl("histc", &histogram);
  library.impl("gru_cell", &one_gru_cell);
  library.impl("lstm_cell", &one_lstm_cell);
  library.impl("tensor_split.tensor_indices_or_sections", &tensor_split);
  library.impl("_nested_tensor_from_mask_left_aligned", &never_nested);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("gru_cell", &one_gru_cell);
  library.impl("lstm_cell", &one_lstm_cell);
  library.impl("tensor_split.tensor_indices_or_sections", &tensor_split);
  for (const char* const name : kWhole) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&whole>());
  }
}

}  // namespace djinn::device
