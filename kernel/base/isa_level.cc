// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/isa_level.h"

namespace djinn {

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
  const bool has_dots =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  return has_dots ? IsaLevel::kAvx512Bf16 : IsaLevel::kAvx512;
#else
  return IsaLevel::kBase;
#endif
}

bool is_amd() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace djinn
