// SPDX-License-Identifier: Apache-2.0

// GPT-2's alphabet: 256 printable characters that stand for bytes, so that every text is a word of
// them. The printable ones of Latin-1 stand for themselves, the others for U+0100 and on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace djinn::text {

[[nodiscard]] std::string characters_of_bytes(std::string_view text);
[[nodiscard]] std::optional<unsigned char> byte_of_character(uint32_t point);

}  // namespace djinn::text
