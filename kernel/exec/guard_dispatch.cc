// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/guard_dispatch.h"

#include <memory>
#include <set>
#include <string>

#include "kernel/base/assert.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/guards.h"
#include "kernel/exec/one_thread.h"
#include "kernel/exec/scratch.h"

namespace djinn::exec {
namespace {

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kGuardKey);

class GuardKernel final : public c10::OperatorKernel {
 public:
  GuardKernel(Guard guard, Scratch scratch, Race race)
      : guard_(guard), scratch_(scratch), race_(race) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  std::vector<c10::IValue>* stack) {
    DJINN_ASSERT(stack->size() == op.schema().arguments().size());
    if (guard_ != nullptr) guard_(*stack);
    const HeldBytes held(scratch_ != nullptr ? scratch_(*stack) : 0);
    const OneThread alone(race_ != nullptr && race_(*stack));
    op.redispatchBoxed(keys & kBelow, stack);
  }

 private:
  Guard guard_;
  Scratch scratch_;
  Race race_;
};

struct GuardLibraries {
  torch::Library every{torch::Library::IMPL, "_", kGuardKey, __FILE__, __LINE__};
  torch::Library aten{torch::Library::IMPL, "aten", kGuardKey, __FILE__, __LINE__};
};

}  // namespace

void register_guards() {
  // The libraries are global to the process and never destroyed, like those of our own operators.
  static const GuardLibraries* const libraries = [] {
    auto* const made = new GuardLibraries;
    made->every.fallback(torch::CppFunction::makeFallthrough());
    std::set<std::string_view> operators;
    for (const auto& names :
         {guarded_operators(), operators_with_scratch(), operators_with_races()}) {
      operators.insert(names.begin(), names.end());
    }
    for (const std::string_view op : operators) {
      made->aten.impl(std::string(op).c_str(),
                      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<GuardKernel>(
                          guard_of(op), scratch_of(op), race_of(op))));
    }
    return made;
  }();
  (void)libraries;
}

}  // namespace djinn::exec
