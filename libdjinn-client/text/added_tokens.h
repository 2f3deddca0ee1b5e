// SPDX-License-Identifier: Apache-2.0

// AddedTokens: tokens that are found in the text itself, before its words are: <|endoftext|>.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "libdjinn-client/text/byte_trie.h"
#include "libdjinn-client/text/model.h"
#include "libdjinn-client/text/normalizer.h"
#include "libdjinn-client/text/piece.h"

namespace djinn::text {

// A search may walk as far at each of a text's bytes. Published ones have up to a hundred.
inline constexpr size_t kAddedTokenBytesMax = 256;

class AddedTokens {
 public:
  // json: the file's list, or null. normalizer: null where there is none. Errors: kMalformed,
  // kLimitExceeded for a token that is too long, and kUnsupported where `tokenizers` would give a
  // token another id than the file says.
  static Result<AddedTokens> make(const Json& json, const Model& model,
                                  const Normalizer* normalizer);

  // Splits at those that are found before the text is normalized.
  [[nodiscard]] Pieces find_raw(const Piece& piece) const { return find(raw_, piece); }
  // Splits at those that are found afterwards.
  [[nodiscard]] Pieces find_normalized(const Piece& piece) const {
    return find(normalized_, piece);
  }

  // As it is found: normalized, where that is when it is looked for.
  [[nodiscard]] std::optional<std::string_view> text_of(int32_t id) const;
  // Whether a special token's content is this.
  [[nodiscard]] bool is_special(std::string_view text) const;

 private:
  struct Token {
    std::string content;
    std::string text;  // that is looked for
    int32_t id;
    bool is_special;
    bool is_normalized;
    bool takes_left;   // spaces before it
    bool takes_right;  // spaces behind it
    bool is_word;      // nothing of a word is beside it
  };

  static Result<Token> read(const Json& json);
  Status add(Token token, const Model& model);
  Status add_to_search(size_t place, const Normalizer* normalizer, Retries& retries);
  [[nodiscard]] Pieces find(const ByteTrie& trie, const Piece& piece) const;

  std::vector<Token> tokens_;
  int64_t next_id_ = 0;                         // of one that the model does not have
  std::unordered_map<int32_t, size_t> places_;  // in tokens_, by id
  std::set<std::string, std::less<>> contents_;
  std::set<std::string, std::less<>> special_;
  ByteTrie raw_;  // to places in tokens_
  ByteTrie normalized_;
};

}  // namespace djinn::text
