// SPDX-License-Identifier: Apache-2.0

// IsaLevel: which instructions our own kernels are made of. One is chosen at the start and stays:
// what `fast` computes is a function of it.
#pragma once

#include <stdint.h>

namespace djinn::kernels {

// In order: each has all that those before it have.
//   kBase         what every x86-64 has, and other machines
//   kAvx2         with FMA and F16C
//   kAvx512       F, BW, VL, DQ
//   kAvx512Bf16   dot products of bf16
enum class IsaLevel : uint8_t { kBase, kAvx2, kAvx512, kAvx512Bf16 };
inline constexpr uint8_t kIsaLevels = 4;
static_assert(kIsaLevels == static_cast<uint8_t>(IsaLevel::kAvx512Bf16) + 1);

// The highest that this machine has.
[[nodiscard]] IsaLevel best_isa_level();

// The vendor, which other libraries choose their kernels by.
[[nodiscard]] bool is_amd();

}  // namespace djinn::kernels
