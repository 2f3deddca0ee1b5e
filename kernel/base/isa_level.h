// SPDX-License-Identifier: Apache-2.0

// IsaLevel: which instructions our own kernels for the host are made of. One is chosen at the start
// of a process and stays: what `fast` computes is a function of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace djinn {

// In order: each has all that those before it have.
//   kBase         what every x86-64 has, and other machines
//   kAvx2         with FMA and F16C
//   kAvx512       F, BW, VL, DQ
//   kAvx512Bf16   dot products of bf16, and of int8 (VNNI), which processors with these have
// Some machines of kAvx2 and kAvx512 have dot products of int8 as well. They are no levels of their
// own, for they change no bit (has_int8_dots()).
//   kAmx          tiles, and their products of bf16
enum class IsaLevel : uint8_t { kBase, kAvx2, kAvx512, kAvx512Bf16, kAmx };

inline constexpr std::array<std::string_view, 5> kIsaLevelNames{"base", "avx2", "avx512",
                                                                "avx512-bf16", "amx"};
inline constexpr size_t kIsaLevels = kIsaLevelNames.size();
inline constexpr IsaLevel kHighestIsa = IsaLevel::kAmx;
static_assert(kIsaLevels == static_cast<size_t>(kHighestIsa) + 1);

[[nodiscard]] constexpr std::string_view name_of(IsaLevel level) {
  return kIsaLevelNames[static_cast<size_t>(level)];
}

[[nodiscard]] constexpr std::optional<IsaLevel> isa_level_of(std::string_view name) {
  const auto* found = std::ranges::find(kIsaLevelNames, name);
  if (found == kIsaLevelNames.end()) return std::nullopt;
  return static_cast<IsaLevel>(found - kIsaLevelNames.begin());
}

// The highest that this machine has. The first call asks the kernel for what it gives on demand: so
// it is made before the process is confined.
[[nodiscard]] IsaLevel best_isa_level();

// What a process that may take `most` takes on this machine. Asks likewise.
[[nodiscard]] IsaLevel usable_isa_level(IsaLevel most);

// Whether this machine multiplies int8 itself in vectors of that level: AVX-VNNI for kAvx2,
// AVX512-VNNI from kAvx512 on.
[[nodiscard]] bool has_int8_dots(IsaLevel level);

}  // namespace djinn
