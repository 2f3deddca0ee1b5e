// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/kernels/isa_level.h"

#include <array>

namespace djinn::kernels {
namespace {

constexpr std::array<std::string_view, kIsaLevels> kNames = {"base", "avx2", "avx512",
                                                             "avx512-bf16"};

}  // namespace

std::string_view name_of(IsaLevel level) {
  return kNames[static_cast<size_t>(level)];
}

std::optional<IsaLevel> isa_level_named(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<IsaLevel>(i);
  }
  return std::nullopt;
}

IsaLevel best_isa_level() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return IsaLevel::kBase;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return IsaLevel::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? IsaLevel::kAvx512Bf16 : IsaLevel::kAvx512;
#else
  return IsaLevel::kBase;
#endif
}

}  // namespace djinn::kernels
