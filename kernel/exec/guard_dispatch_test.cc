// SPDX-License-Identifier: Apache-2.0

// Calls of each composite operator that is allowed, traced: whatever guarded operator one reaches,
// its guard stands there.
#include "kernel/exec/guard_dispatch.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "kernel/exec/allow_list.h"
#include "kernel/exec/composite_calls_for_tests.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/guards.h"
#include "kernel/exec/one_thread.h"

namespace djinn::exec {
namespace {

using c10::TypeKind;

std::string name_of(const c10::OperatorName& op) {
  return op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
}

// What the dispatcher is asked for on this thread, while one lives.
class Trace {
 public:
  Trace()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}))) {
    calls.clear();
    unguarded.clear();
  }
  ~Trace() { at::removeCallback(handle_); }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  inline static thread_local std::set<std::string> calls;
  inline static thread_local std::set<std::string> unguarded;

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const auto op = function.operator_name();
    if (!op) return nullptr;
    const std::string name = exec::name_of(*op);
    calls.insert(name);
    const bool stands =
        c10::impl::tls_is_dispatch_key_included(kGuardKey) &&
        !c10::impl::tls_is_dispatch_key_excluded(kGuardKey) &&
        c10::Dispatcher::singleton().findOp(*op)->hasKernelForDispatchKey(kGuardKey);
    const bool needs_one = guard_of(name) != nullptr || race_of(name) != nullptr;
    if (needs_one && !stands) unguarded.insert(name);
    return nullptr;
  }

  at::CallbackHandle handle_;
};

bool is_composite(const Operator& op) {
  return op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
         op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

c10::IValue sample(const c10::Argument& formal, const at::Tensor& tensor) {
  if (formal.default_value()) return *formal.default_value();
  const c10::Type* type = formal.real_type().get();
  const auto* optional = type->castRaw<c10::OptionalType>();
  if (optional != nullptr) type = optional->getElementType().get();
  switch (type->kind()) {
    case TypeKind::TensorType:
      return tensor.clone();
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return int64_t{1};
    case TypeKind::FloatType:
      return 0.5;
    case TypeKind::NumberType:
      return c10::Scalar(2);
    case TypeKind::BoolType:
      return false;
    case TypeKind::ScalarTypeType:
      return at::kFloat;
    case TypeKind::ListType:
      break;
    default:
      return {};
  }
  switch (type->castRaw<c10::ListType>()->getElementType()->kind()) {
    case TypeKind::TensorType:
      return c10::List<at::Tensor>({tensor.clone(), tensor.clone()});
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return c10::List<int64_t>(
          std::vector<int64_t>(static_cast<size_t>(formal.N().value_or(1)), 1));
    case TypeKind::FloatType:
      return c10::List<double>({1.0});
    default:
      return {};
  }
}

// Whether the call went through; what it reached is traced either way.
bool call(const Operator& op, Stack stack) {
  const Status status = catching([&]() -> Status {
    op.handle.callBoxed(&stack);
    return {};
  });
  return status.ok();
}

bool call_with(const Operator& op, const at::Tensor& tensor) {
  Stack stack;
  for (const c10::Argument& formal : op.handle.schema().arguments()) {
    stack.push_back(sample(formal, tensor));
  }
  return call(op, std::move(stack));
}

using Reached = std::map<std::string, std::set<std::string>>;

TEST(GuardDispatch, stands_at_every_guarded_call_inside_of_a_composite) {
  if (!is_allocator_installed()) initialise(2);
  c10::InferenceMode inference_mode;
  const GuardedCalls guarded;
  auto particular = composites::all();
  Reached reached;
  for (const std::string_view name : allowed_operators()) {
    const auto op = resolve_operator(name);
    if (!op.ok() || !is_composite(**op)) continue;
    const Trace trace;
    bool any = false;
    if (auto own = particular.extract(std::string(name))) {
      for (Stack& stack : own.mapped()) {
        any = call(**op, std::move(stack));
        EXPECT_TRUE(any) << name << " refuses a call that is written for it";
      }
    }
    for (const auto type : {at::kFloat, at::kLong, at::kBool, at::kComplexFloat}) {
      for (size_t rank = 0; rank <= 5; ++rank) {
        any = call_with(**op, at::full(std::vector<int64_t>(rank, 2), 1, type)) || any;
      }
    }
    EXPECT_TRUE(any) << name << " is not traced: write a call for it";
    EXPECT_TRUE(Trace::unguarded.empty()) << name << " reaches " << *Trace::unguarded.begin();
    for (const std::string& call : Trace::calls) {
      if (call != name && guard_of(call) != nullptr) reached[std::string(name)].insert(call);
    }
  }
  for (const auto& [name, stacks] : particular) {
    ADD_FAILURE() << name << " has calls, and is no composite that is allowed";
  }
  // Those that were read; more may be guarded by now.
  const Reached known{
      {"aten::_batch_norm_with_update_functional", {"aten::_batch_norm_with_update"}},
      {"aten::_native_batch_norm_legit_functional", {"aten::_native_batch_norm_legit"}},
      {"aten::_native_batch_norm_legit_no_training", {"aten::_native_batch_norm_legit"}},
      {"aten::_upsample_bicubic2d_aa.vec", {"aten::_upsample_bicubic2d_aa"}},
      {"aten::_upsample_bilinear2d_aa.vec", {"aten::_upsample_bilinear2d_aa"}},
      {"aten::_upsample_nearest_exact1d.vec", {"aten::_upsample_nearest_exact1d"}},
      {"aten::_upsample_nearest_exact2d.vec", {"aten::_upsample_nearest_exact2d"}},
      {"aten::_upsample_nearest_exact3d.vec", {"aten::_upsample_nearest_exact3d"}},
      {"aten::_weight_norm", {"aten::_weight_norm_interface"}},
      {"aten::batch_norm", {"aten::native_batch_norm"}},
      {"aten::cross_entropy_loss", {"aten::nll_loss_forward"}},
      {"aten::divide.Scalar_mode", {"aten::div.Scalar_mode", "aten::div.Tensor_mode"}},
      {"aten::divide.Tensor_mode", {"aten::div.Tensor_mode"}},
      {"aten::grid_sampler", {"aten::grid_sampler_2d", "aten::grid_sampler_3d"}},
      {"aten::group_norm", {"aten::native_group_norm"}},
      {"aten::istft", {"aten::_fft_c2r", "aten::unfold_backward"}},
      {"aten::nll_loss", {"aten::nll_loss_forward"}},
      {"aten::nll_loss2d", {"aten::nll_loss2d_forward"}},
      {"aten::nll_loss_nd", {"aten::nll_loss2d_forward", "aten::nll_loss_forward"}},
      {"aten::pad",
       {"aten::_pad_circular", "aten::reflection_pad1d", "aten::reflection_pad2d",
        "aten::reflection_pad3d", "aten::replication_pad1d", "aten::replication_pad2d",
        "aten::replication_pad3d"}},
      {"aten::pdist", {"aten::_pdist_forward"}},
      {"aten::scaled_dot_product_attention", {"aten::_scaled_dot_product_flash_attention_for_cpu"}},
      {"aten::stft", {"aten::_fft_r2c"}},
      {"aten::upsample_bicubic2d.vec", {"aten::upsample_bicubic2d"}},
      {"aten::upsample_bilinear2d.vec", {"aten::upsample_bilinear2d"}},
      {"aten::upsample_linear1d.vec", {"aten::upsample_linear1d"}},
      {"aten::upsample_nearest1d.vec", {"aten::upsample_nearest1d"}},
      {"aten::upsample_nearest2d.vec", {"aten::upsample_nearest2d"}},
      {"aten::upsample_nearest3d.vec", {"aten::upsample_nearest3d"}},
      {"aten::upsample_trilinear3d.vec", {"aten::upsample_trilinear3d"}},
  };
  for (const auto& [composite, inner] : known) {
    const std::set<std::string>& found = reached[composite];
    EXPECT_TRUE(std::ranges::includes(found, inner)) << composite;
  }
}

}  // namespace
}  // namespace djinn::exec
