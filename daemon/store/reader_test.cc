// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/reader.h"

#include <gtest/gtest.h>

#include <string_view>

namespace djinn::store {
namespace {

const Asker kLocalUser{.owner = Owner::of_user(1000), .groups = {"ml", "users"}};
const Asker kFarBot{.owner = Owner::of_principal(7), .principal = "spiffe://example.org/team/bot"};

TEST(StoreReader, each_cell_of_who_may_read_is_as_the_head_says) {
  struct Cell {
    std::string_view reader;
    bool ann;
    bool bot;
  };
  const Cell cells[] = {
      {"owner", false, false},
      {"local", true, false},
      {"all", true, true},
      {"group:ml", true, false},
      {"group:m", false, false},
      {"group:mls", false, false},
      {"principal:spiffe://example.org/team/bot", false, true},
      {"principal:spiffe://example.org/team/bo", false, false},
      {"principal:spiffe://example.org/team/*", false, true},
      {"principal:spiffe://example.org/*", false, true},
      {"principal:spiffe://example.org/team/bot/*", false, false},
      {"principal:spiffe://example.org/te/*", false, false},
      {"principal:spiffe://other.org/*", false, false},
  };
  for (const Cell& cell : cells) {
    const auto reader = Reader::parse(cell.reader);
    ASSERT_TRUE(reader.ok()) << cell.reader;
    EXPECT_EQ(reader->text(), cell.reader);
    EXPECT_EQ(reader->admits(kLocalUser), cell.ann) << cell.reader;
    EXPECT_EQ(reader->admits(kFarBot), cell.bot) << cell.reader;
    EXPECT_FALSE(reader->admits(Asker{})) << cell.reader;
  }
}

TEST(StoreReader, names_of_a_principal_are_of_no_use_to_a_local_user) {
  Asker liar = kLocalUser;
  liar.principal = kFarBot.principal;
  EXPECT_FALSE(Reader::parse("principal:spiffe://example.org/*")->admits(liar));
  Asker grouped = kFarBot;
  grouped.groups = kLocalUser.groups;
  EXPECT_FALSE(Reader::parse("group:ml")->admits(grouped));
}

TEST(StoreReader, what_is_no_reader_is_refused) {
  for (const std::string_view text :
       {"", "everybody", "Owner", "group:", "group:a b", "group:a\n", "principal:", "principal:bot",
        "principal:spiffe://", "principal:spiffe:///*", "principal:spiffe://*/a",
        "principal:spiffe://example.org/*/b", "principal:spiffe://example.org/a*",
        "principal:spiffe://example.org/a\xc3\xa4"}) {
    const auto reader = Reader::parse(text);
    ASSERT_FALSE(reader.ok()) << text;
    EXPECT_EQ(reader.error().code, ErrorCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace djinn::store
