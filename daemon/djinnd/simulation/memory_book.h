// SPDX-License-Identifier: Apache-2.0

// MemoryBook: the extents of weights that a simulated machine has, whatever djinnd's accounts say.
// One that no loader was given has no pages.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/djinnd/memory/extent_source.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"

namespace djinn::daemon::simulation {

class MemoryBook {
 public:
  void made(const Fd& extent, uint64_t bytes);
  // The extent is this source's: it made it, or knows it from a djinnd before.
  void is_of(const ExtentSource& source, const Fd& extent);
  // The source is to seal or to free it.
  void comes_to(const ExtentSource& source, const Fd& extent);
  // How often one came to a source that it was not of.
  [[nodiscard]] size_t strayed() const { return strayed_; }
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
  std::map<uint64_t, const ExtentSource*> sources_;  // by inode
  size_t strayed_ = 0;
};

}  // namespace djinn::daemon::simulation
