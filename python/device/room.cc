// SPDX-License-Identifier: Apache-2.0

#include "python/device/room.h"

#include <algorithm>
#include <unordered_set>

namespace djinn::device {
namespace {

// A smaller result is made in less time than waiting for it takes.
constexpr uint64_t kWaitedForMin = 64 * 1024;

// Counts the bytes that entries make, and those of storages that djinnd gets or makes for them.
class Count {
 public:
  void add(const Entry& entry) {
    for (const StoragePtr& product : entry.products) {
      if (product && product->held) bytes_ += product->bytes;
    }
    for (const Operand& operand : entry.operands) {
      if (operand.storage->location == Location::kHost) add_once(*operand.storage);
    }
    for (const uint32_t w : entry.recipe->written) {
      const Storage& storage = *entry.operands[w].storage;
      if (storage.location == Location::kZero && storage.held) add_once(storage);
    }
  }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  void add_once(const Storage& storage) {
    if (seen_.insert(&storage).second) bytes_ += storage.bytes;
  }

  std::unordered_set<const Storage*> seen_;
  uint64_t bytes_ = 0;
};

}  // namespace

bool Room::may_be_short(const Entry& entry) {
  Count count;
  count.add(entry);
  pending_bytes_ += count.bytes();
  return count.bytes() >= kWaitedForMin && entry.phase != srg::Phase::kTraining &&
         Held::now() + pending_bytes_ > ceiling_bytes_;
}

bool Room::is_short(const Log& log) {
  Count count;
  for (const Entry& entry : log.entries()) count.add(entry);
  pending_bytes_ = count.bytes();
  return Held::now() + pending_bytes_ > ceiling_bytes_;
}

void Room::note_free(uint64_t bytes) {
  ceiling_bytes_ = std::max(ceiling_bytes_, Held::now() + bytes);
}

}  // namespace djinn::device
