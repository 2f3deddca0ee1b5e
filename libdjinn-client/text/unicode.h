// SPDX-License-Identifier: Apache-2.0

// Characters as `tokenizers` sees them: UTF-8, classes, normal forms, lower case. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernel/base/text.h"

namespace djinn::text {

// Where the first bytes are that are no UTF-8; the size, where all are.
[[nodiscard]] size_t valid_bytes(std::string_view text);
// The character that ends before `end`; end > 0.
[[nodiscard]] Character character_before(std::string_view text, size_t end);
void append_character(std::string& text, uint32_t point);
[[nodiscard]] size_t count_characters(std::string_view text);

// White_Space.
[[nodiscard]] bool is_space(uint32_t point);
// Of category N.
[[nodiscard]] bool is_number(uint32_t point);
// \w as the crate regex has it: Alphabetic, M, Nd, Pc and Join_Control.
[[nodiscard]] bool is_word(uint32_t point);
// ASCII's, or of category P.
[[nodiscard]] bool is_punctuation(uint32_t point);
// Of category M.
[[nodiscard]] bool is_mark(uint32_t point);
// Of category Mn, as BertNormalizer sees it.
[[nodiscard]] bool is_accent(uint32_t point);
// Of category Cc, Cf or Co, as BertNormalizer sees it.
[[nodiscard]] bool is_control(uint32_t point);

// Appends the lower case of one character, which may be two.
void append_lower(std::string& text, uint32_t point);

// Where the extended grapheme cluster ends that begins at `at`; at < text.size().
[[nodiscard]] size_t cluster_end(std::string_view text, size_t at);

enum class NormalForm { kC, kD, kKC, kKD };
[[nodiscard]] std::string normalized(std::string_view text, NormalForm form);

// The text with a character of the same category and length in place of each that Oniguruma does
// not know. True where there was one.
bool replace_younger(std::string& text);

}  // namespace djinn::text
