// SPDX-License-Identifier: Apache-2.0

// MemoryBook: the extents of weights that a simulated machine has, whatever djinnd's accounts say.
// One that no loader was given has no pages.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/ids.h"

namespace djinn::daemon::simulation {

class MemoryBook {
 public:
  void made(const Fd& extent, uint64_t bytes);
  // A loader has it.
  void used(const Fd& extent);
  // Closed, or its pages are free.
  void freed(const Fd& extent);
  // All are gone but these, of models.
  void keep_only(const std::map<ModelId, std::vector<Fd>>& extents);
  // Those of which nobody has a descriptor are gone.
  void forget_closed();
  // The model was kept, and is gone.
  void freed(ModelId model);
  // Nobody frees these.
  void keep(std::vector<Fd> extents);
  // Of those that were used.
  [[nodiscard]] uint64_t bytes() const;
  [[nodiscard]] uint64_t bytes_of(const std::vector<Fd>& extents) const;

 private:
  struct Extent {
    uint64_t bytes = 0;
    bool used = false;
  };
  std::map<uint64_t, Extent> there_;  // by inode
  std::map<ModelId, std::vector<uint64_t>> kept_models_;
  std::vector<Fd> kept_;
};

}  // namespace djinn::daemon::simulation
