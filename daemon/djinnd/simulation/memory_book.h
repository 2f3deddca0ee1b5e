// SPDX-License-Identifier: Apache-2.0

// MemoryBook: the extents of weights that a simulated machine has, whatever djinnd's accounts say.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernel/base/fd.h"

namespace djinn::daemon::simulation {

class MemoryBook {
 public:
  void made(int extent, uint64_t bytes) { there_[extent] = bytes; }
  // Closed, or its pages are free.
  void freed(int extent) { there_.erase(extent); }
  // Nobody frees these.
  void keep(std::vector<Fd> extents) {
    for (Fd& extent : extents) kept_.push_back(std::move(extent));
  }
  [[nodiscard]] uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& [extent, bytes] : there_) sum += bytes;
    return sum;
  }

 private:
  std::map<int, uint64_t> there_;
  std::vector<Fd> kept_;
};

}  // namespace djinn::daemon::simulation
