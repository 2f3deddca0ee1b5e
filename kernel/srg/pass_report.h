// SPDX-License-Identifier: Apache-2.0

// PassReport: what a pass of kernel/srg/rewrite did to a graph whose numerics are fast.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace djinn::srg {

struct PassReport {
  std::string name;                         // "linear"
  uint32_t fired = 0;                       // nodes that it made
  std::map<std::string, uint32_t> reasons;  // why it left nodes that it looks for; how many
  uint32_t missed = 0;  // of those left: products with a constant matrix, which are to be ours
  // Counts a node more that it left.
  void leave(std::string_view reason) { ++reasons[std::string(reason)]; }
  friend bool operator==(const PassReport&, const PassReport&) = default;
};

}  // namespace djinn::srg
