// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/word_models.h"

#include <algorithm>
#include <utility>

#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

class WordModel : public Model {
 public:
  WordModel(Words vocabulary, std::optional<int32_t> unknown)
      : Model(std::move(vocabulary)), unknown_(unknown) {}

 protected:
  Status add_unknown(std::string_view word, std::vector<int32_t>& tokens) const {
    if (!unknown_) return no_unknown_token(word);
    tokens.push_back(*unknown_);
    return {};
  }

 private:
  std::optional<int32_t> unknown_;  // none: an error where it is needed
};

class WordLevel final : public WordModel {
 public:
  using WordModel::WordModel;
  Status add_tokens(std::string_view word, std::vector<int32_t>& tokens) const override {
    const auto id = words().id_of(word);
    if (!id) return add_unknown(word, tokens);
    tokens.push_back(*id);
    return {};
  }
};

class WordPiece final : public WordModel {
 public:
  WordPiece(Words vocabulary, std::optional<int32_t> unknown, std::string prefix,
            uint64_t characters_max)
      : WordModel(std::move(vocabulary), unknown),
        prefix_(std::move(prefix)),
        characters_max_(characters_max) {}

  Status add_tokens(std::string_view word, std::vector<int32_t>& tokens) const override {
    const size_t before = tokens.size();
    if (count_characters(word) <= characters_max_ && cut(word, tokens)) return {};
    tokens.resize(before);
    return add_unknown(word, tokens);
  }

 private:
  bool cut(std::string_view word, std::vector<int32_t>& tokens) const {
    for (size_t begin = 0; begin < word.size();) {
      const size_t bytes = longest_at(word, begin, tokens);
      if (bytes == 0) return false;
      begin += bytes;
    }
    return true;
  }

  // Appends the token of the longest word that begins there; its bytes, or 0 where there is none.
  size_t longest_at(std::string_view word, size_t begin, std::vector<int32_t>& tokens) const {
    std::string candidate = begin > 0 ? prefix_ : std::string();
    const size_t before = candidate.size();
    if (before >= words().longest()) return 0;
    // What is longer than the longest word is none; a character that is cut in two is none either.
    candidate += word.substr(begin, words().longest() - before);
    while (candidate.size() > before) {
      if (const auto id = words().id_of(candidate)) {
        tokens.push_back(*id);
        return candidate.size() - before;
      }
      candidate.pop_back();
    }
    return 0;
  }

  std::string prefix_;
  uint64_t characters_max_;
};

std::optional<int32_t> unknown_of(Settings& settings, const Words& words) {
  return words.id_of(settings.text_or("unk_token", ""));
}

}  // namespace

Result<std::unique_ptr<Model>> make_word_piece(Settings& settings, TokenizerFile& file) {
  DJINN_TRY(auto words, Words::make(std::move(file.words)));
  const auto unknown = unknown_of(settings, words);
  auto prefix = settings.affix_or("continuing_subword_prefix", "");
  const uint64_t characters_max = settings.count("max_input_chars_per_word", 100);
  return std::make_unique<WordPiece>(std::move(words), unknown, std::move(prefix), characters_max);
}

Result<std::unique_ptr<Model>> make_word_level(Settings& settings, TokenizerFile& file) {
  DJINN_TRY(auto words, Words::make(std::move(file.words)));
  const auto unknown = unknown_of(settings, words);
  return std::make_unique<WordLevel>(std::move(words), unknown);
}

}  // namespace djinn::text
