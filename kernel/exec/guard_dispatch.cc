// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/guard_dispatch.h"

#include <memory>
#include <string>

#include "kernel/base/assert.h"
#include "kernel/exec/guards.h"

namespace djinn::exec {
namespace {

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kGuardKey);

class GuardKernel final : public c10::OperatorKernel {
 public:
  explicit GuardKernel(Guard guard) : guard_(guard) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  std::vector<c10::IValue>* stack) {
    DJINN_ASSERT(stack->size() == op.schema().arguments().size());
    guard_(*stack);
    op.redispatchBoxed(keys & kBelow, stack);
  }

 private:
  Guard guard_;
};

struct GuardLibraries {
  torch::Library every{torch::Library::IMPL, "_", kGuardKey, __FILE__, __LINE__};
  torch::Library aten{torch::Library::IMPL, "aten", kGuardKey, __FILE__, __LINE__};
};

}  // namespace

void register_guards() {
  // As the operators of our own: global to the process, and never destroyed.
  static const GuardLibraries* const libraries = [] {
    auto* const made = new GuardLibraries;
    made->every.fallback(torch::CppFunction::makeFallthrough());
    for (const std::string_view op : guarded_operators()) {
      made->aten.impl(std::string(op).c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                                   std::make_unique<GuardKernel>(guard_of(op))));
    }
    return made;
  }();
  (void)libraries;
}

}  // namespace djinn::exec
