// SPDX-License-Identifier: Apache-2.0

// What became of captures of a program's pieces (capture_cache.h), since the process began.
#pragma once

#include <cstdint>

namespace djinn::exec {

struct CaptureStats {
  uint64_t captured = 0;           // and kept
  uint64_t replayed = 0;           // pieces
  uint64_t replayed_launches = 0;  // that were in them
  uint64_t failed = 0;             // to be captured, or to be launched
  uint64_t without_room = 0;       // would have been captured, were there fewer graphs
  uint64_t dropped = 0;            // for others, or because memory has moved
  // Now:
  uint64_t graphs = 0;
  uint64_t bytes = 0;  // of the device, as far as that is known (launch_graph.h)
};

}  // namespace djinn::exec
