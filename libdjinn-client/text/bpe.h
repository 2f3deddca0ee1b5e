// SPDX-License-Identifier: Apache-2.0

// Byte pair encoding: a word's characters, joined two by two in the order of the file's merges.
#pragma once

#include "libdjinn-client/text/model.h"

namespace djinn::text {

Result<std::unique_ptr<Model>> make_bpe(Settings& settings, TokenizerFile& file);

}  // namespace djinn::text
