// SPDX-License-Identifier: Apache-2.0

// What a model's tokens are: whether an id is one, and the directory's tokenizer.
#pragma once

#include <cstdint>
#include <string>

#include "kernel/base/result.h"
#include "libdjinn-client/text/tokenizer.h"

namespace djinn::client {

// what: the id's part, for the error, as "Token". Errors: kOutOfRange for an id that is not in
// [0, vocabulary).
Status check_token(const char* what, int64_t token, int64_t vocabulary);

// By the directory's tokenizer.json. Errors: kNotFound, kMalformed, and kUnsupported for what is
// not known of such files here.
Result<text::Tokenizer> open_tokenizer(const std::string& directory);

}  // namespace djinn::client
