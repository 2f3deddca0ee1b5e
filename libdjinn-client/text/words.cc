// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/words.h"

#include <algorithm>
#include <utility>

namespace djinn::text {

Result<Words> Words::make(std::vector<TokenizerFile::Word> words) {
  Words made;
  made.words_ = std::move(words);
  made.ids_.reserve(made.words_.size());
  for (size_t i = 0; i < made.words_.size(); ++i) {
    const TokenizerFile::Word& word = made.words_[i];
    const auto id = static_cast<size_t>(word.id);
    if (!made.ids_.emplace(word.text, static_cast<int32_t>(id)).second) {
      return malformed("the word '" + word.text.substr(0, 60) + "' is in its vocabulary twice");
    }
    if (id >= made.places_.size()) made.places_.resize(id + 1, -1);
    if (made.places_[id] >= 0) {
      return malformed("two words of its vocabulary have the id " + std::to_string(id));
    }
    made.places_[id] = static_cast<int32_t>(i);
    made.longest_ = std::max(made.longest_, word.text.size());
  }
  return made;
}

std::optional<std::string_view> Words::text_of(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= places_.size()) return std::nullopt;
  const int32_t place = places_[static_cast<size_t>(id)];
  if (place < 0) return std::nullopt;
  return words_[static_cast<size_t>(place)].text;
}

}  // namespace djinn::text
