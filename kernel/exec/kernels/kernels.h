// SPDX-License-Identifier: Apache-2.0

// Kernels: all of ours, of one instruction level.
#pragma once

#include "kernel/base/isa_level.h"
#include "kernel/exec/kernels/attend.h"
#include "kernel/exec/kernels/linear.h"
#include "kernel/exec/kernels/rows.h"

namespace djinn::kernels {

struct Kernels {
  LinearKernels linear;
  RowKernels rows;
  AttendKernels attend;
};

// The level must be one that this machine has. Where a machine multiplies int8 itself (VNNI), but
// is of a level that others are of that do not, it has int8 kernels of these instructions, with the
// bits of the level's own.
[[nodiscard]] const Kernels& kernels_of(IsaLevel level);

// Each level's, by the file that is compiled for it.
extern const Kernels kKernelsBase;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsAvx512Bf16;
extern const Kernels kKernelsAmx;
extern const Int8LinearKernels kInt8Avx2Vnni;
extern const Int8LinearKernels kInt8Avx512Vnni;
#endif

}  // namespace djinn::kernels
