// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)
#include "kernel/exec/kernels/level_dots.h"

#include "kernel/exec/kernels/attend_tokens_template.h"
#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/linear_template.h"
#include "kernel/exec/kernels/rows_template.h"

namespace djinn::kernels {
extern const Kernels kKernelsAvx512Bf16 = {kLinearOfThisLevel, kRowsOfThisLevel,
                                           kAttendOfThisLevel};
}  // namespace djinn::kernels
#endif
