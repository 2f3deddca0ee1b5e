// SPDX-License-Identifier: Apache-2.0

#pragma once

// Sums are in registers where loops over them are unrolled, which -O2 alone does not do.
#define DJINN_UNROLL _Pragma("GCC unroll 32")
