// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

size_t spaces_begin(std::string_view text, size_t end) {
  while (end > 0) {
    const Character one = character_before(text, end);
    if (!is_space(one.point)) break;
    end -= one.bytes;
  }
  return end;
}

size_t spaces_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Character one = character_at(text, begin);
    if (!is_space(one.point)) break;
    begin += one.bytes;
  }
  return begin;
}

bool is_beside_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(character_before(text, begin).point)) ||
         (end < text.size() && is_word(character_at(text, end).point));
}

// The longest that the text begins with there.
struct Found {
  size_t bytes = 0;
  int32_t place = -1;
};
Found longest_at(const ByteTrie& trie, std::string_view text, size_t at) {
  Found longest;
  trie.each_beginning(text.substr(at), [&](size_t bytes, int32_t place) {
    longest = {bytes, place};
  });
  return longest;
}

}  // namespace

Result<AddedTokens> AddedTokens::make(const Json& json, const Model& model,
                                      const Normalizer* normalizer) {
  AddedTokens added;
  added.next_id_ = static_cast<int64_t>(model.words().size());
  if (json.is_null()) return added;
  if (!json.is_array()) return malformed("its added_tokens are no list");
  for (const Json& one : json) {
    DJINN_TRY(auto token, read(one));
    DJINN_CHECK(added.add(std::move(token), model));
  }
  Retries retries;
  for (size_t place = 0; place < added.tokens_.size(); ++place) {
    DJINN_CHECK(added.add_to_search(place, normalizer, retries));
  }
  return added;
}

Result<AddedTokens::Token> AddedTokens::read(const Json& json) {
  Settings settings(json, "added token");
  Token token;
  token.content = settings.text_or("content", "");
  const uint64_t id = settings.count("id", kTokensMax);
  token.is_special = settings.flag("special", false);
  token.is_normalized = settings.flag("normalized", !token.is_special);
  token.takes_left = settings.flag("lstrip", false);
  token.takes_right = settings.flag("rstrip", false);
  token.is_word = settings.flag("single_word", false);
  DJINN_CHECK(settings.finish());
  if (token.content.empty() || id >= static_cast<uint64_t>(kTokensMax)) {
    return malformed("its added token '" + shown(token.content) + "' has no text, or no id");
  }
  DJINN_CHECK(check_bytes(token.content, kAddedTokenBytesMax, "an added token"));
  token.id = static_cast<int32_t>(id);
  return token;
}

Status AddedTokens::add(Token token, const Model& model) {
  if (contents_.contains(token.content) || places_.contains(token.id)) {
    return malformed("the text or the id of its added token '" + shown(token.content) +
                     "' is another one's, too");
  }
  const auto own = model.words().id_of(token.content);
  const int64_t expected = own ? int64_t{*own} : next_id_;
  if (token.id != expected) {
    return not_known("the added token '" + shown(token.content) + "' as " +
                     std::to_string(token.id) + ", and not as " + std::to_string(expected));
  }
  contents_.insert(token.content);
  if (token.is_special) special_.insert(token.content);
  places_.emplace(token.id, tokens_.size());
  next_id_ = std::max(next_id_, int64_t{token.id} + 1);
  tokens_.push_back(std::move(token));
  return {};
}

Status AddedTokens::add_to_search(size_t place, const Normalizer* normalizer, Retries& retries) {
  Token& token = tokens_[place];
  Piece piece{token.content, -1, true};
  if (token.is_normalized && normalizer != nullptr)
    DJINN_CHECK(normalizer->normalize(piece, retries));
  token.text = std::move(piece.text);
  DJINN_CHECK(check_bytes(token.text, kAddedTokenBytesMax, "an added token"));
  ByteTrie& trie = token.is_normalized ? normalized_ : raw_;
  if (token.text.empty() || !trie.add(token.text, static_cast<int32_t>(place))) {
    return not_known("the added token '" + shown(token.content) +
                     "', of which normalizing leaves nothing, or what another one is");
  }
  return {};
}

Pieces AddedTokens::find(const ByteTrie& trie, const Piece& piece) const {
  const std::string_view text = piece.text;
  Pieces pieces;
  size_t end = 0;  // of what is in pieces
  const auto keep = [&](size_t from, size_t to, int32_t token) {
    if (from < to) {
      pieces.push_back(
          {std::string(text.substr(from, to - from)), token, piece.at_start && from == 0});
    }
  };
  for (size_t at = 0; at < text.size();) {
    const Found found = longest_at(trie, text, at);
    if (found.bytes == 0) {
      ++at;
      continue;
    }
    const Token& token = tokens_[static_cast<size_t>(found.place)];
    const size_t begin = at;
    at += found.bytes;
    if (token.is_word && is_beside_word(text, begin, at)) continue;
    const size_t from = token.takes_left ? std::max(spaces_begin(text, begin), end) : begin;
    const size_t to = token.takes_right ? spaces_end(text, at) : at;
    keep(end, from, -1);
    keep(from, to, token.id);
    end = to;
  }
  keep(end, text.size(), -1);
  return pieces;
}

std::optional<std::string_view> AddedTokens::text_of(int32_t id) const {
  const auto found = places_.find(id);
  if (found == places_.end()) return std::nullopt;
  return tokens_[found->second].text;
}

bool AddedTokens::is_special(std::string_view text) const {
  return special_.contains(text);
}

}  // namespace djinn::text
