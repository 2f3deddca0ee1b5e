// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/vocabulary.h"

#include <string>

namespace djinn::client {

Status check_token(const char* what, int64_t token, int64_t vocabulary) {
  if (token >= 0 && token < vocabulary) return {};
  return Error{ErrorCode::kOutOfRange,
               std::string(what) + " " + std::to_string(token) + " is not in the vocabulary of " +
                   std::to_string(vocabulary) + ". Is it of another model's tokenizer?"};
}

}  // namespace djinn::client
