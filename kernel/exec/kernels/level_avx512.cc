// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)
#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/level_widened.h"

namespace djinn::kernels {
extern const Kernels kKernelsAvx512 = {kLinearOfThisLevel, kRowsOfThisLevel, kAttendOfThisLevel};
}  // namespace djinn::kernels
#endif
