// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/byte_characters.h"

#include <array>

#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
         (byte >= 0xae && byte <= 0xff);
}

constexpr std::array<uint32_t, 256> characters() {
  std::array<uint32_t, 256> points{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    points[byte] = stands_for_itself(byte) ? byte : next++;
  }
  return points;
}

constexpr std::array<uint32_t, 256> kCharacters = characters();
static_assert(kCharacters[0xad] == 0x143);  // the last

}  // namespace

std::string characters_of_bytes(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  for (const char byte : text) append_character(out, kCharacters[static_cast<unsigned char>(byte)]);
  return out;
}

std::optional<unsigned char> byte_of_character(uint32_t point) {
  if (point < 256) {
    if (!stands_for_itself(point)) return std::nullopt;
    return static_cast<unsigned char>(point);
  }
  if (point > kCharacters[0xad]) return std::nullopt;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (kCharacters[byte] == point) return static_cast<unsigned char>(byte);
  }
  return std::nullopt;
}

}  // namespace djinn::text
