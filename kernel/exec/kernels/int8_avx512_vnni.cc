// SPDX-License-Identifier: Apache-2.0

#if defined(__x86_64__)
#include "kernel/exec/kernels/kernels.h"
#include "kernel/exec/kernels/level_widened.h"

namespace djinn::kernels {
extern const Int8LinearKernels kInt8Avx512Vnni = kInt8OfThisLevel;
}  // namespace djinn::kernels
#endif
