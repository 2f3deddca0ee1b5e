// SPDX-License-Identifier: Apache-2.0

// SlotSteps: how far behind their own slots the entries of an open table lie, while it is filled.
// Whoever writes a file may choose words and ids that all belong into one slot; then each would be
// looked for among all others, and a file of ten megabytes would take hours.
#pragma once

#include <cstddef>

namespace djinn::text {

class SlotSteps {
 public:
  explicit SlotSteps(size_t entries) : left_((entries + 1) * kStepsOfEntry) {}

  // One more lies so many slots behind its own. False where all together lie too far behind.
  [[nodiscard]] bool allow(size_t steps) {
    if (steps > left_) return false;
    left_ -= steps;
    return true;
  }

 private:
  // A mean. Of a table that is half full at most, and whose entries nobody chose, it is below one.
  static constexpr size_t kStepsOfEntry = 64;

  size_t left_;
};

}  // namespace djinn::text
