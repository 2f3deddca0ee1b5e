// SPDX-License-Identifier: Apache-2.0

// Byte tokens: the tokenizer of byte-level models, which needs no file: a byte is its own token,
// 256 begins a text and 257 ends it (models/bytes).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

inline constexpr int64_t kByteVocabulary = 258;

// [begin] + bytes; a begin below 0 is left out.
[[nodiscard]] std::vector<int32_t> byte_tokens(std::string_view text, int64_t begin);
// Nothing for tokens that stand for no byte.
[[nodiscard]] std::optional<char> byte_of(int32_t token);

// What tokenizer a directory has. One in another file than tokenizer.json is for other libraries.
enum class TokenizerFile { kNone, kJson, kOther };
[[nodiscard]] TokenizerFile tokenizer_in(const std::string& directory);

// Token ids of a text like "12, 7 40". Errors: kInvalidArgument for anything else, and for none.
Result<std::vector<int32_t>> tokens_from(std::string_view text);

}  // namespace djinn::ctl
