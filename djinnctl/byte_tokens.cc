// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/byte_tokens.h"

#include <algorithm>
#include <array>
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

bool has_tokenizer(const std::string& directory) {
  std::error_code ignored;
  const std::filesystem::path path(directory);
  return std::ranges::any_of(
      std::array{"tokenizer.json", "tokenizer.model", "vocab.txt"},
      [&](const char* name) { return std::filesystem::exists(path / name, ignored); });
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
