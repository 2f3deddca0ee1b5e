// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/text.h"

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn {
namespace {

constexpr bool is_within(uint32_t point, uint32_t first, uint32_t last) {
  return point >= first && point <= last;
}

bool may_be_shown(uint32_t point) {
  return point >= 0x20 && !is_within(point, 0x7f, 0x9f) && !is_within(point, 0x2028, 0x202e) &&
         !is_within(point, 0x2066, 0x2069) && point != kNoCharacter;
}

}  // namespace

Character first_character(std::string_view text) noexcept {
  DJINN_ASSERT(!text.empty());
  constexpr Character kNone{kNoCharacter, 1};
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return kNone;
  if (!std::ranges::all_of(text.substr(1, bytes - 1), is_continuation)) return kNone;
  const Character one = character_at(text, 0);
  const bool is_overlong = one.point < (bytes == 4 ? 0x10000u : bytes == 3 ? 0x800u : 0x80u);
  const bool is_one =
      !is_overlong && one.point <= 0x10ffff && !is_within(one.point, 0xd800, 0xdfff);
  return is_one ? one : kNone;
}

std::string_view whole_characters(std::string_view text, size_t bytes_max) noexcept {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && is_continuation(text[end])) --end;
  return text.substr(0, end);
}

bool is_showable(std::string_view text) noexcept {
  while (!text.empty()) {
    const Character one = first_character(text);
    if (!may_be_shown(one.point)) return false;
    text.remove_prefix(one.bytes);
  }
  return true;
}

std::string showable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character one = first_character(text);
    out += may_be_shown(one.point) ? text.substr(0, one.bytes) : "?";
    text.remove_prefix(one.bytes);
  }
  return out;
}

}  // namespace djinn
