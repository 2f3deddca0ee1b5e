// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/vocabulary.h"

#include <filesystem>

#include "kernel/base/file.h"
#include "libdjinn-client/text/tokenizer_file.h"

namespace djinn::client {

Status check_token(const char* what, int64_t token, int64_t vocabulary) {
  if (token >= 0 && token < vocabulary) return {};
  return Error{ErrorCode::kOutOfRange,
               std::string(what) + " " + std::to_string(token) + " is not in the vocabulary of " +
                   std::to_string(vocabulary) + ". Is it of another model's tokenizer?"};
}

Result<text::Tokenizer> open_tokenizer(const std::string& directory) {
  const std::string path = std::filesystem::path(directory) / "tokenizer.json";
  DJINN_TRY(const std::string json, read_regular_file(path, text::kFileBytesMax));
  return text::Tokenizer::read(json);
}

}  // namespace djinn::client
