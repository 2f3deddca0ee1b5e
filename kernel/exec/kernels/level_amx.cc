// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)
#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/level_dots.h"
#include "kernel/exec/kernels/linear_amx.h"
#include "kernel/exec/kernels/linear_amx_split.h"

namespace djinn::kernels {
namespace {

constexpr LinearKernels linear_of_amx() {
  LinearKernels linear = kLinearOfThisLevel;
  constexpr auto kBFloat16 = static_cast<size_t>(Element::kBFloat16);
  linear.outputs_first[kBFloat16] = &amx_outputs_first;
  linear.split = kSplitOfThisLevel;
  return linear;
}

}  // namespace

extern const Kernels kKernelsAmx = {linear_of_amx(), kRowsOfThisLevel, kAttendOfThisLevel};

}  // namespace djinn::kernels
#endif
