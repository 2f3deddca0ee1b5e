// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/text.h"

#include <gtest/gtest.h>

#include "kernel/base/clock.h"

namespace djinn::ctl {
namespace {

TEST(Time, is_rfc_3339_in_utc_with_nanoseconds) {
  EXPECT_EQ(time_text(0), "1970-01-01T00:00:00.000000000Z");
  EXPECT_EQ(time_text(1'772'366'400'123'456'789), "2026-03-01T12:00:00.123456789Z");
  EXPECT_EQ(second_text(1'772'366'400'123'456'789), "2026-03-01T12:00:00Z");
}

TEST(Age, is_told_in_its_largest_unit) {
  const uint64_t now = 1000 * 86'400 * kNsPerSecond;
  EXPECT_EQ(age_text(now - 59 * kNsPerSecond, now), "59s");
  EXPECT_EQ(age_text(now - 60 * kNsPerSecond, now), "1m");
  EXPECT_EQ(age_text(now - 7200 * kNsPerSecond, now), "2h");
  EXPECT_EQ(age_text(now - 90'000 * kNsPerSecond, now), "1d");
  EXPECT_EQ(age_text(now + kNsPerSecond, now), "0s");
  EXPECT_EQ(age_text(0, now), "-");
}

TEST(Id, has_twelve_digits) {
  EXPECT_EQ(id_text(uint64_t{0xab}), "0000000000ab");
  EXPECT_EQ(id_text(ModelId{0xfedcba987654}), "fedcba987654");
}

TEST(Isolated, a_name_that_is_written_from_right_to_left_turns_nothing_behind_it) {
  EXPECT_EQ(isolated("\u05d0\u05d1 2"), "\u2068\u05d0\u05d1 2\u2069");
  EXPECT_EQ(isolated("\u0627"), "\u2068\u0627\u2069");
  EXPECT_EQ(isolated("\U0001e900"), "\u2068\U0001e900\u2069");
  for (const char* mark : {"\u200e", "\u200f", "\u061c"}) {
    const std::string name = std::string("b") + mark;
    EXPECT_EQ(isolated(name), "\u2068" + name + "\u2069");
  }
  for (const char* plain : {"", "a-1", "größer", "日本語", "😀", "\u2067"}) {
    EXPECT_EQ(isolated(plain), plain);
  }
}

TEST(Isolated, is_each_such_name_of_a_sentence) {
  EXPECT_EQ(
      isolated_within("It is '\u05d0', '\u05d1 -\u05d2' or \u05d3 3: no."),
      "It is '\u2068\u05d0\u2069', '\u2068\u05d1 -\u05d2\u2069' or \u2068\u05d3\u2069 3: no.");
  EXPECT_EQ(isolated_within("größer \xff"), "größer \xff");
}

TEST(Isolated, can_be_pasted_where_a_name_is_meant) {
  EXPECT_EQ(without_isolate(isolated("\u05d0 1")), "\u05d0 1");
  EXPECT_EQ(without_isolate("\u2068\u05d0"), "\u2068\u05d0");
  EXPECT_EQ(without_isolate("a"), "a");
}

std::string on_a_terminal(std::string_view said) {
  Harmless harmless;
  std::string shown;
  for (const char byte : said) shown += harmless.next(byte);
  return shown;
}

TEST(Harmless, lets_a_stream_say_what_it_likes_and_not_steer) {
  EXPECT_EQ(on_a_terminal("caf\xc3\xa9\t\xe2\x80\x9b \xf0\x9f\x98\x80 \xc2\xa0\n"),
            "caf\xc3\xa9\t\xe2\x80\x9b \xf0\x9f\x98\x80 \xc2\xa0\n");
  EXPECT_EQ(on_a_terminal("\x1b[2J\x7f\r"), "?[2J??");
  EXPECT_EQ(on_a_terminal("\xc2\x9b[J"), "?[J") << "one character that begins a sequence";
  EXPECT_EQ(on_a_terminal("\x9b[J"), "?[J") << "the same where bytes are characters";
  EXPECT_EQ(on_a_terminal("\xc2|\xc2\xc2\x9b\xff\xc0\x9b\xf5"), "?|??????");
}

TEST(Percent, is_100_only_when_all_is_done) {
  EXPECT_EQ(percent_of(0, 0), 0u);
  EXPECT_EQ(percent_of(1, 3), 33u);
  EXPECT_EQ(percent_of(~uint64_t{0} - 1, ~uint64_t{0}), 99u);
  EXPECT_EQ(percent_of(3, 3), 100u);
  EXPECT_EQ(percent_of(4, 3), 100u);
}

TEST(Shortened, is_cut_between_characters) {
  EXPECT_EQ(shortened("Übersicht", 9), "Übersicht");
  EXPECT_EQ(shortened("Übersicht", 2), "Ü…");
  EXPECT_EQ(shortened("äöü", 2), "ä…");
  EXPECT_EQ(shortened("a", 0), "");
}

TEST(Shortened, leaves_no_isolate_open_and_counts_none) {
  const std::string name = isolated("\u05d0\u05d1\u05d2");
  EXPECT_EQ(width_of(name), 3u);
  EXPECT_EQ(width_of("a\u200e\u200f\u061c"), 1u);
  EXPECT_EQ(shortened(name, 3), name);
  EXPECT_EQ(shortened(name, 2), isolated("\u05d0") + "…");
  EXPECT_EQ(cut(name + "12", 3), name);
  EXPECT_EQ(cut(name + "12", 1), isolated("\u05d0"));
}

TEST(Hash, is_hex) {
  std::array<uint8_t, 32> hash{};
  hash[0] = 0x0f;
  EXPECT_EQ(hash_text(hash), "0f" + std::string(62, '0'));
}

}  // namespace
}  // namespace djinn::ctl
