// SPDX-License-Identifier: Apache-2.0

// What a simulated worker has of a session that is attached to it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/gc/session_state.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon::simulation {

struct AttachedGroup {
  uint64_t granted = 0;
  bool spilled = false;        // its bytes are in its file
  uint64_t spilled_bytes = 0;  // and are so many
};

struct AttachedSession {
  uint64_t ref_bytes_granted = 0;
  uint64_t ref_bytes_max = 0;
  std::map<uint64_t, uint64_t> chunks;  // offset: bytes; where extents have no parts
  std::map<SequenceHandle, AttachedGroup> groups;
  Fd memory;  // that its client shares with its worker
  pal::Mapping mapped;
  std::optional<gc::SessionState> state;
};

}  // namespace djinn::daemon::simulation
