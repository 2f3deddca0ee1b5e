// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/byte_tokens.h"

#include <filesystem>

namespace djinn::ctl {

std::vector<int32_t> byte_tokens(std::string_view text, int64_t begin) {
  std::vector<int32_t> tokens;
  tokens.reserve(text.size() + 1);
  if (begin >= 0) tokens.push_back(static_cast<int32_t>(begin));
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::optional<char> byte_of(int32_t token) {
  if (token < 0 || token > 255) return std::nullopt;
  return static_cast<char>(token);
}

Status check_has_no_tokenizer(const std::string& directory) {
  std::error_code ignored;
  const std::filesystem::path path(directory);
  for (const char* const name : {"tokenizer.json", "tokenizer.model", "vocab.txt"}) {
    if (!std::filesystem::exists(path / name, ignored)) continue;
    return Error{ErrorCode::kUnsupported,
                 std::string("djinnctl knows byte-level models only, and this one has a ") + name +
                     ". Use the Python package."};
  }
  return {};
}

}  // namespace djinn::ctl
