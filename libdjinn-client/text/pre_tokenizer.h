// SPDX-License-Identifier: Apache-2.0

// PreTokenizer: what splits pieces into words, as pre-tokenizers of `tokenizers` do.
#pragma once

#include <memory>
#include <string>

#include "libdjinn-client/text/piece.h"
#include "libdjinn-client/text/regex.h"
#include "libdjinn-client/text/settings.h"

namespace djinn::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Replaces pieces that have no token by what they are split into. Errors: of Regex::find_all(),
  // and kLimitExceeded for more than kPiecesBytesMax, or kPiecesMax.
  Status split(Pieces& pieces, Retries& retries) const;

 protected:
  virtual Status part(Pieces& pieces, Retries& retries) const = 0;

 private:
  friend Result<std::unique_ptr<PreTokenizer>> make_pre_tokenizer(const Json& json);
  std::string name_;  // for errors
};

// Errors: kUnsupported for one that is not known, kMalformed.
Result<std::unique_ptr<PreTokenizer>> make_pre_tokenizer(const Json& json);

enum class PrependScheme { kFirst, kNever, kAlways };

// What Metaspace has, as pre-tokenizer and as decoder.
struct MetaspaceSettings {
  std::string replacement;  // one character
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;
};
Result<MetaspaceSettings> metaspace_of(Settings& settings);

}  // namespace djinn::text
