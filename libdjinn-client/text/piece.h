// SPDX-License-Identifier: Apache-2.0

// Piece: a part of a text on its way to tokens. Normalizers change pieces, pre-tokenizers split
// them, and the model makes tokens of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernel/base/result.h"

namespace djinn::text {

struct Piece {
  std::string text;
  int32_t token = -1;     // of an added token, which nothing changes any more; -1: none
  bool at_start = false;  // nothing of the original text is before it
};

using Pieces = std::vector<Piece>;

// What the pieces of one text may have together. A file may ask for what makes any text long, and
// again; those that are published do not make one four times as long as it was.
inline constexpr size_t kPiecesBytesMax = size_t{32} << 20;
inline constexpr size_t kPiecesMax = size_t{8} << 20;

// kLimitExceeded. what: as "the normalizer X".
inline Error too_much(const std::string& what) {
  return {ErrorCode::kLimitExceeded, "By " + what + " of tokenizer.json this text has more than " +
                                         std::to_string(kPiecesBytesMax) + " bytes, or " +
                                         std::to_string(kPiecesMax) +
                                         " parts. Give less of it at once."};
}

}  // namespace djinn::text
