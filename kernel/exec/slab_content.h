// SPDX-License-Identifier: Apache-2.0

// SlabContent: whose bytes lie where in a lane's slab, so that no run reads what another owner's
// run left there.
//
// invariant: bytes outside all parts are zeros, and so are those of a part that its owner did not
// write.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/exec/allocator_hook.h"

namespace djinn::exec {

class SlabContent {
 public:
  // memory: of whose device the slab is; null: it is the host's.
  explicit SlabContent(DeviceMemory* memory = nullptr) : memory_(memory) {}

  // The slab is another one, of zeros.
  void forget() { parts_.clear(); }
  // Before a run of that owner that may use [begin, end): what others may have left there is
  // zeroed. Of an owner whose range it was already this costs nothing.
  void make_clean(std::span<std::byte> slab, uint64_t begin, uint64_t end, uint64_t owner);

 private:
  struct Part {
    uint64_t begin;
    uint64_t end;
    uint64_t owner;
  };
  void zero(std::span<std::byte> range);

  DeviceMemory* memory_;
  std::vector<Part> parts_;  // in order, none empty, none over another
  std::vector<Part> next_;   // of make_clean(), kept for its memory
};

}  // namespace djinn::exec
