// SPDX-License-Identifier: Apache-2.0

// Staging: hands out ranges of the session's staging slab. A range that a submission names belongs
// to the daemon until its completion; lease.h gives it back then.
//
// invariant: free ranges do not touch or overlap; free + handed out == slab.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "ipc/binding.h"
#include "kernel/base/result.h"

namespace djinn::client {

class Staging {
 public:
  explicit Staging(std::span<std::byte> slab);

  // A range of at least bytes (rounded up to 64), aligned to 64. Errors: kQueueFull when the slab
  // has no such range now, kLimitExceeded when it never could.
  Result<ipc::StagingRange> allocate(uint64_t bytes);
  void free(const ipc::StagingRange& range);
  [[nodiscard]] std::span<std::byte> bytes(const ipc::StagingRange& range) const;
  [[nodiscard]] uint64_t free_bytes() const { return free_bytes_; }

 private:
  std::span<std::byte> slab_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes
  uint64_t free_bytes_;
};

}  // namespace djinn::client
