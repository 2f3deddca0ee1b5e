// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)
#include "kernel/exec/kernels/level_avx512.h"

namespace djinn::kernels {
namespace {

template <>
struct Dot<BFloat16> : WidenedDot<BFloat16> {
  static Level::Vector to_vector(const BFloat16* from) { return widened_bfloat16(from); }
  static float widen(BFloat16 value) { return widen_bfloat16(value); }
  static BFloat16 round(float value) { return to_bfloat16(value); }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/linear_template.h"

namespace djinn::kernels {
extern const LinearKernels kLinearAvx512 = kOfThisLevel;
}  // namespace djinn::kernels
#endif
