// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/kernels/kernels.h"

#include "kernel/base/assert.h"

namespace djinn::kernels {

const Kernels& kernels_of(IsaLevel level) {
  DJINN_ASSERT(level <= best_isa_level());
#if defined(__x86_64__)
  switch (level) {
    case IsaLevel::kBase:
      return kKernelsBase;
    case IsaLevel::kAvx2:
      return kKernelsAvx2;
    case IsaLevel::kAvx512:
      return kKernelsAvx512;
    case IsaLevel::kAvx512Bf16:
      return kKernelsAvx512Bf16;
    case IsaLevel::kAmx:
      return kKernelsAmx;
  }
#endif
  return kKernelsBase;
}

}  // namespace djinn::kernels
