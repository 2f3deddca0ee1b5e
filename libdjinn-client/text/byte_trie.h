// SPDX-License-Identifier: Apache-2.0

// ByteTrie: which of many texts a text begins with.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_map>

namespace djinn::text {

class ByteTrie {
 public:
  // Of a text that is added twice the first value stays; false then. text: not empty.
  bool add(std::string_view text, int32_t value) {
    uint32_t node = 0;
    for (const char byte : text) {
      const auto [place, is_new] = edges_.emplace(key_of(node, byte), count_);
      if (is_new) ++count_;
      node = place->second;
    }
    return values_.emplace(node, value).second;
  }

  // Calls found(bytes, value) for each, the shortest first.
  template <typename Found>
  void each_beginning(std::string_view text, const Found& found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto edge = edges_.find(key_of(node, text[i]));
      if (edge == edges_.end()) return;
      node = edge->second;
      if (const auto value = values_.find(node); value != values_.end()) {
        found(i + 1, value->second);
      }
    }
  }

 private:
  struct Spread {
    size_t operator()(uint64_t key) const { return (key * 0x9e3779b97f4a7c15) >> 20; }
  };
  static uint64_t key_of(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }

  std::unordered_map<uint64_t, uint32_t, Spread> edges_;
  std::unordered_map<uint32_t, int32_t> values_;  // of nodes where a text ends
  uint32_t count_ = 1;                            // of nodes; the first is the root
};

}  // namespace djinn::text
