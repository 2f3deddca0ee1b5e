// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/isa_level.h"

#if defined(__x86_64__)
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace djinn {
namespace {

#if defined(__x86_64__)
// The kernel saves 8 KiB of tiles for a thread, and lets a process use them that has asked.
bool may_use_tiles() {
  constexpr long kTileData = 18;  // of the state that XSAVE saves
  return ::syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0;
}
#endif

#if defined(__x86_64__)
// Of the VEX encoding, which is no name of __builtin_cpu_supports() with every compiler.
bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kFeatures = 7, kMore = 1, kAvxVnni = 1U << 4;
  return __get_cpuid_count(kFeatures, kMore, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}
#endif

IsaLevel level_of_machine() {
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
  if (!has_dots) return IsaLevel::kAvx512;
  const bool has_tiles = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
  return has_tiles && may_use_tiles() ? IsaLevel::kAmx : IsaLevel::kAvx512Bf16;
#else
  return IsaLevel::kBase;
#endif
}

}  // namespace

IsaLevel best_isa_level() {
  static const IsaLevel level = level_of_machine();
  return level;
}

IsaLevel usable_isa_level(IsaLevel most) {
  return std::min(most, best_isa_level());
}

bool has_int8_dots(IsaLevel level) {
#if defined(__x86_64__)
  if (level > best_isa_level() || level < IsaLevel::kAvx2) return false;
  if (level == IsaLevel::kAvx2) return has_avx_vnni();
  return __builtin_cpu_supports("avx512vnni");
#else
  static_cast<void>(level);
  return false;
#endif
}

}  // namespace djinn
