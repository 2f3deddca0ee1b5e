// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/unigram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "libdjinn-client/text/byte_trie.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

// What an unknown character costs beside the worst word, as SentencePiece has it.
constexpr double kUnknownPenalty = 10;

class Unigram final : public Model {
 public:
  Unigram(Words vocabulary, std::vector<double> scores, std::optional<int32_t> unknown,
          bool byte_fallback)
      : Model(std::move(vocabulary)),
        scores_(std::move(scores)),
        unknown_(unknown),
        byte_fallback_(byte_fallback) {
    double worst = std::numeric_limits<double>::infinity();
    for (size_t id = 0; id < scores_.size(); ++id) {
      trie_.add(*words().text_of(static_cast<int32_t>(id)), static_cast<int32_t>(id));
      worst = std::min(worst, scores_[id]);
    }
    unknown_score_ = worst - kUnknownPenalty;
  }

  Status add_tokens(std::string_view word, std::vector<int32_t>& tokens) const override {
    DJINN_TRY(const auto path, best_path(word));
    for (const std::string_view part : parts_of(word, path)) {
      DJINN_CHECK(add_part(part, tokens));
    }
    return {};
  }

 private:
  // The best way to the byte where it ends.
  struct Node {
    double score = 0;
    int64_t begin = -1;  // -1: there is no way yet
    int32_t id = 0;

    void offer(double other_score, size_t other_begin, int32_t other_id) {
      if (begin >= 0 && !(other_score > score)) return;
      score = other_score;
      begin = static_cast<int64_t>(other_begin);
      id = other_id;
    }
  };

  Result<std::vector<Node>> best_path(std::string_view word) const {
    std::vector<Node> ends(word.size() + 1);
    for (size_t at = 0; at < word.size();) {
      const size_t bytes = character_at(word, at).bytes;
      const double score = ends[at].score;
      bool is_known = false;
      trie_.each_beginning(word.substr(at), [&](size_t length, int32_t id) {
        ends[at + length].offer(scores_[static_cast<size_t>(id)] + score, at, id);
        is_known = is_known || length == bytes;
      });
      if (!is_known) {
        if (!unknown_) return no_unknown_token(word.substr(at, bytes));
        ends[at + bytes].offer(unknown_score_ + score, at, *unknown_);
      }
      at += bytes;
    }
    return ends;
  }

  // From left to right; unknown neighbours are one.
  std::vector<std::string_view> parts_of(std::string_view word,
                                         const std::vector<Node>& ends) const {
    std::vector<std::string_view> parts;
    bool was_unknown = false;
    size_t part_end = 0;
    for (size_t end = word.size(); end > 0;) {
      const Node& node = ends[end];
      const auto begin = static_cast<size_t>(node.begin);
      const bool is_unknown = unknown_ && node.id == *unknown_;
      if (is_unknown && was_unknown) {
        parts.back() = word.substr(begin, part_end - begin);
      } else {
        parts.push_back(word.substr(begin, end - begin));
        part_end = end;
      }
      was_unknown = is_unknown;
      end = begin;
    }
    std::ranges::reverse(parts);
    return parts;
  }

  Status add_part(std::string_view part, std::vector<int32_t>& tokens) const {
    if (const auto id = words().id_of(part)) {
      tokens.push_back(*id);
      return {};
    }
    const auto id_of_byte = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    if (byte_fallback_ &&
        std::ranges::all_of(part, [&](char byte) { return id_of_byte(byte) >= 0; })) {
      for (const char byte : part) tokens.push_back(id_of_byte(byte));
      return {};
    }
    if (!unknown_) return no_unknown_token(part);
    tokens.push_back(*unknown_);
    return {};
  }

  std::vector<double> scores_;  // by id
  std::optional<int32_t> unknown_;
  bool byte_fallback_;
  ByteTrie trie_;
  double unknown_score_ = 0;
  const std::array<int32_t, 256> bytes_ = words().byte_tokens();  // of byte_fallback
};

}  // namespace

Result<std::unique_ptr<Model>> make_unigram(Settings& settings, TokenizerFile& file) {
  settings.refuse("alpha");
  settings.refuse("nbest_size");
  std::vector<TokenizerFile::Word> list;
  std::vector<double> scores;
  for (TokenizerFile::Score& one : file.scores) {
    if (!std::isfinite(one.score)) return malformed("a score of its vocabulary is no number");
    if (one.text.empty()) return malformed("a word of its vocabulary is empty");
    list.push_back({std::move(one.text), static_cast<int64_t>(list.size())});
    scores.push_back(one.score);
  }
  file.scores = {};
  std::optional<int32_t> unknown;
  if (!settings.any("unk_id").is_null()) {
    const uint64_t id = settings.count("unk_id", 0);
    if (id >= list.size()) return malformed("its unk_id is none of its vocabulary");
    unknown = static_cast<int32_t>(id);
  }
  DJINN_TRY(auto words, Words::make(std::move(list)));
  return std::make_unique<Unigram>(std::move(words), std::move(scores), unknown,
                                   settings.flag("byte_fallback", false));
}

}  // namespace djinn::text
