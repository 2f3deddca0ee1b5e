// SPDX-License-Identifier: Apache-2.0

// Unigram: of all ways to cut a word into words of the vocabulary, the one with the best sum of
// their scores.
#pragma once

#include "libdjinn-client/text/model.h"

namespace djinn::text {

Result<std::unique_ptr<Model>> make_unigram(Settings& settings, TokenizerFile& file);

}  // namespace djinn::text
