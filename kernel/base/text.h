// SPDX-License-Identifier: Apache-2.0

// Text from outside: the characters of UTF-8, and what of them may be shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace djinn {

// Whether a name, in UTF-8, holds a character that may steer a terminal: those below U+0020, and
// U+007F to U+009F.
[[nodiscard]] constexpr bool has_control_characters(std::string_view text) noexcept {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < 0x20 || byte == 0x7f) return true;
    if (byte != 0xc2 || i + 1 == text.size()) continue;
    if (const auto next = static_cast<uint8_t>(text[i + 1]); next >= 0x80 && next < 0xa0) {
      return true;
    }
  }
  return false;
}
static_assert(has_control_characters("a\nb") && has_control_characters("a\xc2\x9b") &&
              has_control_characters("\x7f") && !has_control_characters("\xc3\xa4 b"));

struct Character {
  uint32_t point;  // Unicode's
  uint32_t bytes;
};
inline constexpr uint32_t kNoCharacter = UINT32_MAX;

// Whether the byte is of a character that began before it.
[[nodiscard]] constexpr bool is_continuation(char byte) noexcept {
  return (static_cast<uint8_t>(byte) & 0xc0) == 0x80;
}

// Of text that is UTF-8; at < text.size(). It is small because tokenizers ask for every character.
[[nodiscard]] constexpr Character character_at(std::string_view text, size_t at) noexcept {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<uint8_t>(text[at + i])}; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f),
          4};
}

// The first character of a text that may be anything but empty; {kNoCharacter, 1} where no
// character begins: The Unicode Standard 15.0, table 3-7, well-formed UTF-8 byte sequences.
[[nodiscard]] Character first_character(std::string_view text) noexcept;

// The longest beginning of at most so many bytes that ends between two characters.
[[nodiscard]] std::string_view whole_characters(std::string_view text, size_t bytes_max) noexcept;

// Whether a text is UTF-8 without characters that steer a terminal (controls, line feed and tab
// among them), end a line (U+2028, U+2029) or turn the order of those around them (U+202A to
// U+202E, U+2066 to U+2069): one column of a table would be read as another.
[[nodiscard]] bool is_showable(std::string_view text) noexcept;
// The text with '?' for each such character, and for each byte of what is no UTF-8. It has no more
// bytes than the text.
[[nodiscard]] std::string showable(std::string_view text);

}  // namespace djinn
