// SPDX-License-Identifier: Apache-2.0

// RefSlots: which slots of the session's ref table are in use, and by which generation of a ref.
// Slots and generations are the client's to choose.
//
// invariant: a slot's next ref is of a larger generation than every one before it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel/base/ids.h"
#include "kernel/base/result.h"

namespace djinn::client {

class RefSlots {
 public:
  // Errors: kLimitExceeded when all of limits::kRefs are in use.
  Result<RefHandle> allocate();
  // The slot may be used again. Nothing happens for a ref that was freed.
  void free(RefHandle ref);
  // The largest generation that a ref has had.
  [[nodiscard]] uint32_t last_generation() const;
  // Refs have larger generations from now on; before the first one.
  void begin_after(uint32_t generation) { first_generation_ = generation; }

 private:
  uint32_t first_generation_ = 0;      // less one
  std::vector<uint32_t> generations_;  // of the slots ever used: the last one
  std::vector<bool> used_;             // of the same slots: whether that lives
  std::vector<uint32_t> free_;         // of those
};

}  // namespace djinn::client
