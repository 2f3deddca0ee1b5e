// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "libdjinn-client/text/slot_steps.h"

namespace djinn::text {
namespace {

uint32_t hash_of(std::string_view text) {
  return static_cast<uint32_t>(std::hash<std::string_view>()(text));
}

}  // namespace

Result<Words> Words::make(std::vector<TokenizerFile::Word> words) {
  Words made;
  made.words_ = std::move(words);
  made.slots_.resize(std::bit_ceil(made.words_.size() * 2 + 1));
  SlotSteps steps(made.words_.size());
  for (size_t i = 0; i < made.words_.size(); ++i) {
    const TokenizerFile::Word& word = made.words_[i];
    const auto id = static_cast<size_t>(word.id);
    const size_t at = made.slot_of(word.text);
    if (!steps.allow((at - hash_of(word.text)) & (made.slots_.size() - 1))) {
      return malformed("its words were chosen to take for ever");
    }
    Slot& slot = made.slots_[at];
    if (slot.place >= 0) {
      return malformed("the word '" + shown(word.text) + "' is in its vocabulary twice");
    }
    slot = {hash_of(word.text), static_cast<int32_t>(i)};
    if (id >= made.places_.size()) made.places_.resize(id + 1, -1);
    if (made.places_[id] >= 0) {
      return not_known("two words with the id " + std::to_string(id));
    }
    made.places_[id] = static_cast<int32_t>(i);
    made.longest_ = std::max(made.longest_, word.text.size());
  }
  return made;
}

size_t Words::slot_of(std::string_view text) const {
  const uint32_t hash = hash_of(text);
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].place >= 0) {
    const Slot& slot = slots_[at];
    if (slot.hash == hash && words_[static_cast<size_t>(slot.place)].text == text) break;
    at = (at + 1) & (slots_.size() - 1);
  }
  return at;
}

std::optional<int32_t> Words::id_of(std::string_view text) const {
  const int32_t place = slots_[slot_of(text)].place;
  if (place < 0) return std::nullopt;
  return static_cast<int32_t>(words_[static_cast<size_t>(place)].id);
}

std::optional<std::string_view> Words::text_of(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= places_.size()) return std::nullopt;
  const int32_t place = places_[static_cast<size_t>(id)];
  if (place < 0) return std::nullopt;
  return words_[static_cast<size_t>(place)].text;
}

std::array<int32_t, 256> Words::byte_tokens() const {
  std::array<int32_t, 256> ids{};
  for (uint32_t byte = 0; byte < ids.size(); ++byte) {
    ids[byte] = id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  return ids;
}

}  // namespace djinn::text
