// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/text.h"

#include <gtest/gtest.h>

namespace djinn {
namespace {

// As the standard defines UTF-8: from the number to the bytes.
std::string utf8_of(uint32_t point) {
  const auto tail = [&](unsigned shift) {
    return static_cast<char>(0x80 | (point >> shift & 0x3f));
  };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xc0 | point >> 6), tail(0)};
  if (point < 0x10000) return {static_cast<char>(0xe0 | point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | point >> 18), tail(12), tail(6), tail(0)};
}

bool is_character(uint32_t point) {
  return point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
}

TEST(Text, every_character_is_decoded_and_no_surrogate_is_one) {
  for (uint32_t point = 0; point < 0x120000; ++point) {
    const std::string text = utf8_of(point);
    const Character one = first_character(text + "x");
    const Character expected = is_character(point)
                                   ? Character{point, static_cast<uint32_t>(text.size())}
                                   : Character{kNoCharacter, 1};
    ASSERT_EQ(one.point, expected.point) << point;
    ASSERT_EQ(one.bytes, expected.bytes) << point;
    if (is_character(point)) {
      ASSERT_EQ(character_at("x" + text, 1).point, point);
    }
  }
}

TEST(Text, bytes_that_are_no_character_are_none_one_by_one) {
  const std::string_view none[] = {
      "\x80",         "\xbf",         "\xc0\xaf",         "\xc1\xbf",
      "\xc3",         "\xc3x",        "\xe2\x82",         "\xe2\x82x",
      "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf0\x9f\x98",
      "\xf5\x80\x80", "\xff",         "\xf4\x90\x80\x80"};
  for (const std::string_view text : none) {
    EXPECT_EQ(first_character(text).point, kNoCharacter) << testing::PrintToString(text);
    EXPECT_EQ(first_character(text).bytes, 1u);
    EXPECT_FALSE(is_showable(text));
  }
  EXPECT_EQ(showable("\xed\xa0\x80\xf4\x90\x80\x80\xe0\x9f\xbf\xc0\xaf"), "????????????");
  EXPECT_EQ(showable("a\xff\xc3"), "a??");
}

TEST(Text, each_character_that_steers_a_terminal_or_turns_others_is_replaced) {
  const auto steers = [](uint32_t point) {
    return point < 0x20 || (point >= 0x7f && point < 0xa0) ||
           (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069);
  };
  for (uint32_t point = 0; point < 0x3000; ++point) {
    const std::string text = "a" + utf8_of(point) + "b";
    ASSERT_EQ(showable(text), steers(point) ? "a?b" : text) << point;
    ASSERT_EQ(is_showable(text), !steers(point)) << point;
  }
  EXPECT_EQ(showable("Übersicht 日本語 😀"), "Übersicht 日本語 😀");
}

TEST(Text, what_is_cut_ends_between_two_characters) {
  EXPECT_EQ(whole_characters("größer", 6), "größ");
  EXPECT_EQ(whole_characters("größer", 5), "grö");
  EXPECT_EQ(whole_characters("größer", 4), "grö");
  EXPECT_EQ(whole_characters("größer", 3), "gr");
  EXPECT_EQ(whole_characters("größer", 8), "größer");
  EXPECT_EQ(whole_characters("\x80\x80\x80", 2), "");
  EXPECT_EQ(whole_characters("ab", 0), "");
}

}  // namespace
}  // namespace djinn
