// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/byte_tokens.h"

#include <algorithm>
#include <charconv>
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

TokenizerFile tokenizer_in(const std::string& directory) {
  const auto has = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::path(directory) / name, ignored);
  };
  if (has("tokenizer.json")) return TokenizerFile::kJson;
  return has("tokenizer.model") || has("vocab.txt") || has("vocab.json") ? TokenizerFile::kOther
                                                                         : TokenizerFile::kNone;
}

Result<std::vector<int32_t>> tokens_from(std::string_view text) {
  std::vector<int32_t> tokens;
  const auto is_gap = [](char one) { return one == ',' || one == ' '; };
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at = std::find_if_not(at, end, is_gap), at != end) {
    int32_t token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    if (error != std::errc() || token < 0 || (next != end && !is_gap(*next))) break;
    tokens.push_back(token);
    at = next;
  }
  if (at == end && !tokens.empty()) return tokens;
  return Error{ErrorCode::kInvalidArgument,
               "'" + std::string(text.substr(0, 60)) +
                   "' is no list of token ids. Give numbers, like 9906,1917."};
}

}  // namespace djinn::ctl
