// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)
#include "kernel/exec/kernels/level_avx512.h"

namespace djinn::kernels {
namespace {

template <>
struct Dot<BFloat16> : WidenedDot<BFloat16>, BFloat16Elements {
  static Level::Vector to_vector(const BFloat16* from) { return widened_bfloat16(from); }
};

}  // namespace
}  // namespace djinn::kernels

#include "kernel/exec/kernels/attend_template.h"
#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/linear_template.h"
#include "kernel/exec/kernels/rows_template.h"

namespace djinn::kernels {
extern const Kernels kKernelsAvx512 = {kLinearOfThisLevel, kRowsOfThisLevel, kAttendOfThisLevel};
}  // namespace djinn::kernels
#endif
