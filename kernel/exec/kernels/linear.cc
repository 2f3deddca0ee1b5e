// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/kernels/linear.h"

#include "kernel/base/assert.h"

namespace djinn::kernels {

const LinearKernels& linear_kernels(IsaLevel level) {
  DJINN_ASSERT(level <= best_isa_level());
#if defined(__x86_64__)
  switch (level) {
    case IsaLevel::kBase:
      return kLinearBase;
    case IsaLevel::kAvx2:
      return kLinearAvx2;
    case IsaLevel::kAvx512:
      return kLinearAvx512;
    case IsaLevel::kAvx512Bf16:
      return kLinearAvx512Bf16;
  }
#endif
  return kLinearBase;
}

}  // namespace djinn::kernels
