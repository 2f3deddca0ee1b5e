// SPDX-License-Identifier: Apache-2.0

// Charsmap: the normalizer that SentencePiece compiles into a model: a trie of what is replaced (a
// double array of darts-clone), and what by.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/base/result.h"
#include "libdjinn-client/text/piece.h"

namespace djinn::text {

class Charsmap {
 public:
  // Errors: kMalformed.
  static Result<Charsmap> read(std::string_view base64);

  // False where the piece would have more than kPiecesBytesMax.
  [[nodiscard]] bool apply(Piece& piece) const;

 private:
  // What replaces the shortest beginning of `part` that is in the trie, and with it all of `part`.
  [[nodiscard]] std::optional<std::string_view> replacement(std::string_view part) const;

  std::vector<uint32_t> trie_;
  std::string texts_;  // each with a 0 behind it
};

}  // namespace djinn::text
