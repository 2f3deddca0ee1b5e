// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)
#include "kernel/exec/kernels/level_avx2.h"

#include "kernel/exec/kernels/kernels.h"

namespace djinn::kernels {
extern const Kernels kKernelsAvx2 = {kLinearOfThisLevel, kRowsOfThisLevel, kAttendOfThisLevel};
}  // namespace djinn::kernels
#endif
