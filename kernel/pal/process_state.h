// ProcessState: what this process holds of descriptors and mappings, read from /proc/self, so that
// tests can show that a failed call left nothing behind.
#pragma once

#include <cstdint>

namespace djinn::pal {

// Equal before and after means: nothing was leaked. Anonymous readable mappings are the heap's
// business and not counted.
struct ProcessState {
  uint64_t descriptors = 0;
  uint64_t memfd_mappings = 0;  // lines of /proc/self/maps
  uint64_t memfd_mapped_bytes = 0;
  uint64_t reserved_bytes = 0;  // anonymous and inaccessible
  friend bool operator==(const ProcessState&, const ProcessState&) = default;
};

[[nodiscard]] ProcessState read_process_state();

}  // namespace djinn::pal
