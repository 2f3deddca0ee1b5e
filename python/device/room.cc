// SPDX-License-Identifier: Apache-2.0

#include "python/device/room.h"

#include <algorithm>
#include <unordered_set>

namespace djinn::device {
namespace {

// Making a smaller result takes less time than waiting for it would.
constexpr uint64_t kWaitedForMin = 64 * 1024;

uint64_t bytes_made(const Entry& entry) {
  uint64_t bytes = 0;
  for (const StoragePtr& product : entry.products) {
    if (product && product->held) bytes += product->bytes;
  }
  return bytes;
}

uint64_t bytes_crossing(const Entry& entry, std::unordered_set<const Storage*>& seen) {
  uint64_t bytes = 0;
  for (const Operand& operand : entry.operands) {
    const Storage& storage = *operand.storage;
    if (storage.location == Location::kHost && seen.insert(&storage).second) bytes += storage.bytes;
  }
  return bytes;
}

}  // namespace

bool Room::may_be_short(const Entry& entry) {
  std::unordered_set<const Storage*> seen;
  const uint64_t bytes = bytes_made(entry) + bytes_crossing(entry, seen);
  pending_bytes_ += bytes;
  return bytes >= kWaitedForMin && entry.phase != srg::Phase::kTraining &&
         Held::now() + pending_bytes_ > ceiling_bytes_;
}

bool Room::is_short(const Log& log) {
  std::unordered_set<const Storage*> seen;
  pending_bytes_ = 0;
  for (const Entry& entry : log.entries()) {
    pending_bytes_ += bytes_made(entry) + bytes_crossing(entry, seen);
  }
  return Held::now() + pending_bytes_ > ceiling_bytes_;
}

void Room::note_free(uint64_t bytes) {
  ceiling_bytes_ = std::max(ceiling_bytes_, Held::now() + bytes);
}

}  // namespace djinn::device
