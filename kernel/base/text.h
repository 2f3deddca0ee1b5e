// SPDX-License-Identifier: Apache-2.0

// Text from outside.
#pragma once

#include <cstdint>
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

}  // namespace djinn
