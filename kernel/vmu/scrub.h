// SPDX-License-Identifier: Apache-2.0

// Scrub: nobody reads what another left (ARCHITECTURE rule 6). It knows up to where a window of
// memory has ever been used, and zeroes that part of a range before the range is handed out again.
//
// invariant: every byte at and behind used_bytes() is zero, as the device gave it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel/pal/device_pal.h"
#include "kernel/vmu/extent_allocator.h"

namespace djinn::vmu {

class Scrub {
 public:
  // used_bytes: what an unknown predecessor may have written; 0 for fresh memory.
  explicit Scrub(uint64_t used_bytes = 0) noexcept : used_bytes_(used_bytes) {}

  // Makes the range zeros, and counts it as used from now on. After an error the range must not be
  // handed out. Errors: those of DevicePal::zero.
  Status hand_out(pal::DevicePal& pal, pal::Reservation& reservation, Range range) {
    const uint64_t used_end = std::min(range.end(), used_bytes_);
    if (range.offset < used_end) {
      DJINN_CHECK(pal.zero(reservation, range.offset, used_end - range.offset));
    }
    note_used(range.end());
    return {};
  }

  // All that lies before was written without having been handed out here.
  void note_used(uint64_t end_bytes) noexcept { used_bytes_ = std::max(used_bytes_, end_bytes); }

  [[nodiscard]] uint64_t used_bytes() const noexcept { return used_bytes_; }

 private:
  uint64_t used_bytes_;
};

}  // namespace djinn::vmu
