// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/authority/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace djinn::authority {
namespace {

using testing::HasSubstr;

Serial numbered(uint8_t number) {
  Serial serial{};
  serial.back() = number;
  return serial;
}

Record some_record() {
  return {.trust_domain = "example.org",
          .gate = "spiffe://example.org/djinn-gate/box",
          .addresses = {"box:10467", "[::1]:1"},
          .list_number = 7,
          .issued = {{numbered(1), "spiffe://example.org/alice", 100, 200, std::nullopt},
                     {numbered(2), "spiffe://example.org/bob", -5, 300, 150}}};
}

TEST(Records, what_was_written_is_read) {
  const auto read = record_of(text_of(some_record()), "issued");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, some_record());
}

TEST(Records, a_record_that_was_cut_anywhere_within_a_line_is_refused) {
  const std::string text = text_of(some_record());
  for (size_t length = 0; length < text.size(); ++length) {
    const auto read = record_of(text.substr(0, length), "issued");
    const bool ends_with_a_line = length > 0 && text[length - 1] == '\n';
    EXPECT_TRUE(ends_with_a_line || !read.ok()) << length;
  }
}

TEST(Records, a_line_that_cannot_be_read_is_named) {
  const std::string text = text_of(some_record());
  const size_t lines = static_cast<size_t>(std::ranges::count(text, '\n'));
  for (const char* line :
       {"", "a", "00 spiffe://example.org/a 1 2 -",
        "000000000000000000000000000000AB spiffe://example.org/a 1 2 -",
        "000000000000000000000000000000ab spiffe://example.org/a 1 2",
        "000000000000000000000000000000ab spiffe://example.org/a 1 2 - 3",
        "000000000000000000000000000000ab  1 2 -",
        "000000000000000000000000000000ab spiffe://example.org/a 1 99999999999999999999 -",
        "000000000000000000000000000000ab spiffe://example.org/a 1 2 no"}) {
    const auto read = record_of(text + line + '\n', "issued");
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_EQ(read.error().code, ErrorCode::kMalformed);
    EXPECT_THAT(read.error().message, HasSubstr("line " + std::to_string(lines + 1)));
  }
}

TEST(Records, a_head_must_say_all_that_it_has_to) {
  const std::string text = text_of(some_record());
  for (const char* left_out : {"djinn-gate-ca 1\n", "trust-domain: example.org\n",
                               "gate: spiffe://example.org/djinn-gate/box\n", "list: 7\n"}) {
    std::string without = text;
    without.erase(without.find(left_out), std::string(left_out).size());
    EXPECT_FALSE(record_of(without, "issued").ok()) << left_out;
  }
  std::string more = text;
  more.insert(more.find("list:"), "colour: red\n");
  EXPECT_FALSE(record_of(more, "issued").ok());
}

TEST(Records, revoked_counts_before_expired) {
  Issued one{numbered(1), "spiffe://example.org/alice", 100, 200, std::nullopt};
  EXPECT_EQ(one.state(199), State::kValid);
  EXPECT_EQ(one.state(200), State::kExpired);
  one.revoked_s = 150;
  EXPECT_EQ(one.state(199), State::kRevoked);
  EXPECT_EQ(one.state(200), State::kRevoked);
}

TEST(Serials, are_read_as_they_are_written_and_in_no_other_way) {
  const auto serial = random_serial();
  ASSERT_TRUE(serial.ok());
  const std::string text = text_of(*serial);
  EXPECT_EQ(text.size(), 32U);
  ASSERT_TRUE(serial_of(text).ok());
  EXPECT_EQ(*serial_of(text), *serial);
  EXPECT_FALSE(serial_of(text.substr(1)).ok());
  EXPECT_FALSE(serial_of(text + "0").ok());
  EXPECT_FALSE(serial_of("-1000000000000000000000000000000").ok());
  EXPECT_FALSE(serial_of("+1000000000000000000000000000000 ").ok());
  EXPECT_FALSE(serial_of("0000000000000000000000000000000A").ok());
}

}  // namespace
}  // namespace djinn::authority
