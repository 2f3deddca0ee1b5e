// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/weights.h"

namespace djinn::daemon {

uint64_t Weights::evictable_bytes(DeviceId device) const {
  uint64_t bytes = 0;
  for (const bool in_use : {false, true}) {
    for (const Candidate& one : evictable(device, in_use)) {
      if (!in_use || !is_run(one.model, device)) bytes += one.bytes;
    }
  }
  return bytes;
}

Weights::Begun Weights::give_way(DeviceId device, uint64_t bytes, Whose whose) {
  Begun begun;
  for (const bool in_use : {false, true}) {
    if (in_use && whose == Whose::kNobodys) break;
    for (const Candidate& one : evictable(device, in_use)) {
      if (begun.bytes >= bytes) return begun;
      if (in_use && is_run(one.model, device)) {
        begun.runs_hold = true;
        continue;
      }
      begun.bytes += one.bytes;
      send_away(one.model, device);
    }
  }
  return begun;
}

}  // namespace djinn::daemon
