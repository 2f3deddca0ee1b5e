// SPDX-License-Identifier: Apache-2.0

// Room: whether what is recorded will find memory in djinnd. An operator whose result may not is
// waited for, so that it is refused where it is called, and the program has not gone on as if there
// were a result. Operators of training are not looked at: most of what they make is dropped before
// it is handed over.
//
//   ceiling   bytes that this process may hold in djinnd before somebody looks again: what it held
//             and what was free when djinnd was last asked, or what it has held since
#pragma once

#include <cstdint>

#include "python/device/log.h"

namespace djinn::device {

class Room {
 public:
  // Notes an entry that was recorded. True: with all that was recorded it may be over the ceiling.
  [[nodiscard]] bool may_be_short(const Entry& entry);
  // Counts what is recorded anew, without results that nobody holds any more. True: it is over.
  [[nodiscard]] bool is_short(const Log& log);
  // djinnd was asked, or what was recorded has found its memory.
  void note_free(uint64_t bytes);
  // What was recorded was handed over.
  void note_hand_over() { pending_bytes_ = 0; }
  // Memory was refused: the ceiling is nowhere.
  void forget() { ceiling_bytes_ = 0; }

 private:
  // Nobody is asked for less.
  uint64_t ceiling_bytes_ = uint64_t{32} << 20;
  uint64_t pending_bytes_ = 0;  // of what is recorded, and of what is here and crosses for it
};

}  // namespace djinn::device
