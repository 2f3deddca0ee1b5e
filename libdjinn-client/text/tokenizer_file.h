// SPDX-License-Identifier: Apache-2.0

// TokenizerFile: a tokenizer.json as it was read. Its hundred thousands of words and merges go into
// lists at once, for as JSON values they would take longer than all the rest.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/base/result.h"
#include "libdjinn-client/text/settings.h"

namespace djinn::text {

// The largest that are published have 33 MB.
inline constexpr size_t kFileBytesMax = size_t{256} << 20;
// The largest vocabularies that are published have 262,144 tokens.
inline constexpr int64_t kTokensMax = int64_t{1} << 22;
// Values beside vocabulary and merges: a token that was added is some 15, and published files have
// up to a thousand of these. Each takes up to a hundred bytes.
inline constexpr size_t kSettingsMax = size_t{4} << 20;
// Of all words that have scores: each byte may be an edge of a trie, which takes sixty. Published
// vocabularies have up to 3 MB.
inline constexpr size_t kScoredBytesMax = size_t{16} << 20;
// Its normalizers, pre-tokenizers, decoders and so on, each of which goes over a whole text, and
// the regular expressions among them, which have kPatternBytesMax together. Published files have up
// to thirty, and up to six.
inline constexpr size_t kStagesMax = 256;
inline constexpr size_t kPatternsMax = 64;

struct TokenizerFile {
  struct Word {
    std::string text;
    int64_t id;
  };
  struct Score {
    std::string text;
    double score;
  };

  Json settings;              // all but the model's vocab and merges
  std::vector<Word> words;    // where vocab is an object; ids in [0, kTokensMax)
  std::vector<Score> scores;  // where it is a list; of kScoredBytesMax together
  std::vector<std::pair<std::string, std::string>> merges;
};

// Errors: kMalformed for what is no JSON, nested deeper than any is, or has no such vocabulary;
// kLimitExceeded for more than fits.
Result<TokenizerFile> read_tokenizer_file(std::string_view json);

}  // namespace djinn::text
