// SPDX-License-Identifier: Apache-2.0

// Normalizer: what changes a piece before it is split, as normalizers of `tokenizers` do.
#pragma once

#include <memory>
#include <string>

#include "libdjinn-client/text/piece.h"
#include "libdjinn-client/text/regex.h"
#include "libdjinn-client/text/settings.h"

namespace djinn::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Errors: of Regex::find_all(), and kLimitExceeded for more than kPiecesBytesMax. Any thread.
  Status normalize(Piece& piece, Retries& retries) const;

 protected:
  virtual Status change(Piece& piece, Retries& retries) const = 0;
  [[nodiscard]] Error too_much() const { return text::too_much(name_); }

 private:
  friend Result<std::unique_ptr<Normalizer>> make_normalizer(const Json& json);
  std::string name_;  // for errors
};

// Errors: kUnsupported for one that is not known, kMalformed.
Result<std::unique_ptr<Normalizer>> make_normalizer(const Json& json);

}  // namespace djinn::text
