// SPDX-License-Identifier: Apache-2.0

// Words: what a model's vocabulary says, by text and by id.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libdjinn-client/text/tokenizer_file.h"

namespace djinn::text {

// invariant: no text twice, no id twice.
class Words {
 public:
  // Errors: kMalformed for a text that is there twice, kUnsupported for an id.
  static Result<Words> make(std::vector<TokenizerFile::Word> words);

  [[nodiscard]] std::optional<int32_t> id_of(std::string_view text) const;
  // Nothing for an id that no word has.
  [[nodiscard]] std::optional<std::string_view> text_of(int32_t id) const;
  [[nodiscard]] size_t size() const { return words_.size(); }
  // The ids of <0x00> to <0xFF>, by which a model falls back to bytes; -1: none.
  [[nodiscard]] std::array<int32_t, 256> byte_tokens() const;
  // Bytes of the longest.
  [[nodiscard]] size_t longest() const { return longest_; }

 private:
  // A place in words_, with the hash of its text, so that few others are looked at.
  struct Slot {
    uint32_t hash = 0;
    int32_t place = -1;  // -1: the slot is free
  };
  // The slot that has the text, or the free one where it belongs.
  [[nodiscard]] size_t slot_of(std::string_view text) const;

  std::vector<TokenizerFile::Word> words_;
  std::vector<Slot> slots_;      // a power of two, of which at most half are taken
  std::vector<int32_t> places_;  // in words_, by id; -1: none
  size_t longest_ = 0;
};

}  // namespace djinn::text
