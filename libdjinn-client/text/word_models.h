// SPDX-License-Identifier: Apache-2.0

// WordPiece, which cuts a word into the longest words that the vocabulary has, from left to right,
// and WordLevel, which takes words as they are.
#pragma once

#include "libdjinn-client/text/model.h"

namespace djinn::text {

Result<std::unique_ptr<Model>> make_word_piece(Settings& settings, TokenizerFile& file);
Result<std::unique_ptr<Model>> make_word_level(Settings& settings, TokenizerFile& file);

}  // namespace djinn::text
