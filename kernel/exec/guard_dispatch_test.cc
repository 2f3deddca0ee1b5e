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
#include "kernel/exec/convert.h"
#include "kernel/exec/executor_for_tests.h"
#include "kernel/exec/guards.h"

namespace djinn::exec {
namespace {

using c10::TypeKind;
using Stack = std::vector<c10::IValue>;

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
    if (guard_of(name) != nullptr && !stands) unguarded.insert(name);
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

// Composites that take no arguments of one kind alone, or only some values of them.
std::vector<Stack> particular(std::string_view op) {
  const auto tensor = [](std::vector<int64_t> sizes) { return noise(std::move(sizes), 1); };
  const c10::IValue none;
  const at::Tensor four = tensor({4});
  if (op == "aten::batch_norm") {
    return {{tensor({2, 4, 3}), none, none, four, four.abs(), false, 0.1, 1e-5, false},
            {tensor({2, 4, 3}), none, none, none, none, true, 0.1, 1e-5, false}};
  }
  if (op == "aten::pad") {
    std::vector<Stack> stacks;
    for (const char* const mode : {"reflect", "replicate", "circular", "constant"}) {
      for (int64_t dims = 1; dims <= 3; ++dims) {
        std::vector<int64_t> sizes(static_cast<size_t>(dims + 2), 4);
        const std::vector<int64_t> padding(static_cast<size_t>(2 * dims), 1);
        stacks.push_back({tensor(sizes), c10::List<int64_t>(padding), std::string(mode), none});
      }
    }
    return stacks;
  }
  if (op == "aten::grid_sampler") {
    return {{tensor({1, 2, 3, 3}), tensor({1, 2, 2, 2}), 0, 0, false},
            {tensor({1, 2, 3, 3, 3}), tensor({1, 2, 2, 2, 3}), 0, 0, false}};
  }
  if (op == "aten::nll_loss_nd" || op == "aten::nll_loss" || op == "aten::cross_entropy_loss") {
    Stack stack{tensor({3, 4}), int64s({3}, {0, 1, 3}), none, 1, -100};
    if (op == "aten::cross_entropy_loss") stack.emplace_back(0.0);
    return {std::move(stack)};
  }
  return {};
}

using Reached = std::map<std::string, std::set<std::string>>;

TEST(GuardDispatch, stands_at_every_guarded_call_inside_of_a_composite) {
  if (!is_allocator_installed()) initialise(2);
  c10::InferenceMode inference_mode;
  const GuardedCalls guarded;
  size_t composites = 0;
  size_t went_through = 0;
  Reached reached;
  for (const std::string_view name : allowed_operators()) {
    const auto op = resolve_operator(name);
    if (!op.ok() || !is_composite(**op)) continue;
    ++composites;
    const Trace trace;
    bool any = false;
    for (Stack& stack : particular(name)) any = call(**op, std::move(stack)) || any;
    for (const auto type : {at::kFloat, at::kLong, at::kBool, at::kComplexFloat}) {
      for (size_t rank = 0; rank <= 5; ++rank) {
        any = call_with(**op, at::full(std::vector<int64_t>(rank, 2), 1, type)) || any;
      }
    }
    went_through += any ? 1 : 0;
    EXPECT_TRUE(Trace::unguarded.empty()) << name << " reaches " << *Trace::unguarded.begin();
    for (const std::string& call : Trace::calls) {
      if (call != name && guard_of(call) != nullptr) reached[std::string(name)].insert(call);
    }
  }
  EXPECT_GT(went_through, composites * 3 / 4) << "too few were traced to say anything";
  // Those that were read; more may be guarded by now.
  const Reached known{
      {"aten::_weight_norm", {"aten::_weight_norm_interface"}},
      {"aten::batch_norm", {"aten::native_batch_norm"}},
      {"aten::cross_entropy_loss", {"aten::nll_loss_forward"}},
      {"aten::divide.Scalar_mode", {"aten::div.Scalar_mode", "aten::div.Tensor_mode"}},
      {"aten::divide.Tensor_mode", {"aten::div.Tensor_mode"}},
      {"aten::grid_sampler", {"aten::grid_sampler_2d", "aten::grid_sampler_3d"}},
      {"aten::nll_loss", {"aten::nll_loss_forward"}},
      {"aten::nll_loss2d", {"aten::nll_loss2d_forward"}},
      {"aten::nll_loss_nd", {"aten::nll_loss2d_forward", "aten::nll_loss_forward"}},
      {"aten::pad",
       {"aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d",
        "aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d"}},
      {"aten::scaled_dot_product_attention", {"aten::_scaled_dot_product_flash_attention_for_cpu"}},
  };
  for (const auto& [composite, inner] : known) {
    const std::set<std::string>& found = reached[composite];
    EXPECT_TRUE(std::ranges::includes(found, inner)) << composite;
  }
}

}  // namespace
}  // namespace djinn::exec
