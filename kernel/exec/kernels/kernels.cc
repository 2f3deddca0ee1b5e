// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/kernels/kernels.h"

#include "kernel/base/assert.h"

namespace djinn::kernels {
namespace {

#if defined(__x86_64__)
Kernels with_vnni(IsaLevel level, const Kernels& kernels, const Int8LinearKernels& int8) {
  Kernels made = kernels;
  if (has_int8_dots(level)) made.linear.int8 = int8;
  return made;
}
#endif

}  // namespace

const Kernels& kernels_of(IsaLevel level) {
  DJINN_ASSERT(level <= best_isa_level());
#if defined(__x86_64__)
  static const Kernels avx2 = with_vnni(IsaLevel::kAvx2, kKernelsAvx2, kInt8Avx2Vnni);
  static const Kernels avx512 = with_vnni(IsaLevel::kAvx512, kKernelsAvx512, kInt8Avx512Vnni);
  switch (level) {
    case IsaLevel::kBase:
      return kKernelsBase;
    case IsaLevel::kAvx2:
      return avx2;
    case IsaLevel::kAvx512:
      return avx512;
    case IsaLevel::kAvx512Bf16:
      return kKernelsAvx512Bf16;
    case IsaLevel::kAmx:
      return kKernelsAmx;
  }
#endif
  return kKernelsBase;
}

}  // namespace djinn::kernels
