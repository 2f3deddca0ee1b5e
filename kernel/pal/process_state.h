// SPDX-License-Identifier: Apache-2.0

// ProcessState: what this process holds of descriptors and mappings, read from /proc/self, so that
// tests can show that a failed call left nothing behind.
#pragma once

#include <cstdint>

namespace djinn::pal {

// The sanitizers' allocators reserve and use up inaccessible addresses of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsReserved = false;
#else
inline constexpr bool kCountsReserved = true;
#endif

// Equal before and after means: nothing was leaked. Anonymous readable mappings are the heap's
// business and not counted.
struct ProcessState {
  uint64_t descriptors = 0;
  uint64_t memfd_mappings = 0;  // lines of /proc/self/maps
  uint64_t memfd_mapped_bytes = 0;
  uint64_t reserved_bytes = 0;  // anonymous and inaccessible; 0 unless kCountsReserved
  friend bool operator==(const ProcessState&, const ProcessState&) = default;
};

[[nodiscard]] ProcessState read_process_state();

}  // namespace djinn::pal
