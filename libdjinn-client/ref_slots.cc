// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/ref_slots.h"

#include <algorithm>

#include "ipc/limits.h"

namespace djinn::client {

Result<RefHandle> RefSlots::allocate() {
  if (free_.empty()) {
    if (generations_.size() == limits::kRefs) {
      return Error{ErrorCode::kLimitExceeded,
                   "The session holds as many refs as it can. Release some first."};
    }
    free_.push_back(static_cast<uint32_t>(generations_.size()));
    generations_.push_back(first_generation_);
    used_.push_back(false);
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  used_[slot] = true;
  return RefHandle{slot, ++generations_[slot]};
}

void RefSlots::free(RefHandle ref) {
  const bool lives =
      ref.index < used_.size() && used_[ref.index] && generations_[ref.index] == ref.generation;
  if (!lives) return;
  used_[ref.index] = false;
  free_.push_back(ref.index);
}

uint32_t RefSlots::last_generation() const {
  return generations_.empty() ? first_generation_ : std::ranges::max(generations_);
}

}  // namespace djinn::client
