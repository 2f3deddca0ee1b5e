// SPDX-License-Identifier: Apache-2.0

// DJINN_UNROLL, before a loop over a constant count: sums are in registers where it is unrolled,
// which -O2 alone does not do.
#pragma once

#define DJINN_UNROLL _Pragma("GCC unroll 32")
