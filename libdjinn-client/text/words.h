// SPDX-License-Identifier: Apache-2.0

// Words: what a model's vocabulary says, by text and by id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "libdjinn-client/text/tokenizer_file.h"

namespace djinn::text {

// invariant: no text twice, no id twice.
class Words {
 public:
  // Errors: kMalformed for a text or an id that is there twice.
  static Result<Words> make(std::vector<TokenizerFile::Word> words);

  [[nodiscard]] std::optional<int32_t> id_of(std::string_view text) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }
  // Nothing for an id that no word has.
  [[nodiscard]] std::optional<std::string_view> text_of(int32_t id) const;
  [[nodiscard]] size_t size() const { return words_.size(); }
  // Bytes of the longest.
  [[nodiscard]] size_t longest() const { return longest_; }

 private:
  std::vector<TokenizerFile::Word> words_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of words_, which does not change
  std::vector<int32_t> places_;                        // in words_, by id; -1: none
  size_t longest_ = 0;
};

}  // namespace djinn::text
