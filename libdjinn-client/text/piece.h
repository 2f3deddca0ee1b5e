// SPDX-License-Identifier: Apache-2.0

// Piece: a part of a text on its way to tokens. Normalizers change pieces, pre-tokenizers split
// them, and the model makes tokens of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace djinn::text {

struct Piece {
  std::string text;
  int32_t token = -1;     // of an added token, which nothing changes any more; -1: none
  bool at_start = false;  // nothing of the original text is before it
};

using Pieces = std::vector<Piece>;

}  // namespace djinn::text
