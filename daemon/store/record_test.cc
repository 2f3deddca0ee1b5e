// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/record.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace djinn::store {
namespace {

const Name kName = *Name::parse("gpt2:v1");

Record some_record() {
  Record record{.name = kName, .owner = Owner::of_user(1000), .since_s = 1'800'000'000};
  record.readers = {*Reader::parse("local"), *Reader::parse("group:ml")};
  record.aliases = {"hf:openai/gpt2@607a30d7"};
  record.files = {{"model.safetensors", *digest_of("weights"), 7},
                  {"config.json", *digest_of(""), 0}};
  return record;
}

std::string with_sum(const std::string& body) {
  return body + "sum " + text_of(*digest_of(body)) + "\n";
}

std::string body_of(const std::string& text) {
  return text.substr(0, text.rfind("sum "));
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

void expect_malformed(const std::string& text) {
  const auto record = record_of(text, kName);
  ASSERT_FALSE(record.ok()) << text;
  EXPECT_EQ(record.error().code, ErrorCode::kMalformed) << text;
}

TEST(StoreRecord, reads_what_it_writes) {
  const auto text = text_of(some_record());
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto again = record_of(*text, kName);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, some_record());
}

TEST(StoreRecord, truncated_or_changed_anywhere_it_is_refused) {
  const std::string text = *text_of(some_record());
  for (size_t bytes = 0; bytes < text.size(); ++bytes) expect_malformed(text.substr(0, bytes));
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char by : {'\0', '\n', ' ', '0', '/', '\xff'}) {
      std::string changed = text;
      if (changed[at] == by) continue;
      changed[at] = by;
      expect_malformed(changed);
    }
  }
  expect_malformed(text + "\n");
  expect_malformed(text + text);
}

TEST(StoreRecord, with_a_right_sum_it_is_refused_all_the_same_for_what_it_says) {
  const std::string body = body_of(*text_of(some_record()));
  ASSERT_TRUE(record_of(with_sum(body), kName).ok());
  const std::pair<std::string_view, std::string_view> changes[] = {
      {"djinn-model 1", "djinn-model 2"},
      {"djinn-model 1\n", ""},
      {"name gpt2:v1", "name gpt2:v2"},
      {"name gpt2:v1\n", ""},
      {"name gpt2:v1\n", "name gpt2:v1\nname gpt2:v1\n"},
      {"owner 1000", "owner -1"},
      {"owner 1000", "owner 01000"},
      {"owner 1000", "owner 4294967296"},
      {"owner 1000", "owner 99999999999999999999999"},
      {"owner 1000\n", ""},
      {"since 1800000000", "since now"},
      {"since 1800000000\n", ""},
      {"reader local", "reader everybody"},
      {"reader local\nreader group:ml\n", "reader local\nunknown group:ml\n"},
      {"alias hf:openai/gpt2@607a30d7", "alias "},
      {"alias hf:openai/gpt2@607a30d7", "alias hf:a b"},
      {"model.safetensors", "../model.safetensors"},
      {"model.safetensors", "/model.safetensors"},
      {"model.safetensors", "model.py"},
      {"model.safetensors", "config.json"},
      {"model.safetensors", ""},
      {" 7 ", " 07 "},
      {" 7 ", " -7 "},
      {" 7 ", " 18446744073709551615 "},
      {" 7 ", " "},
      {" 0 config.json", " 67108865 config.json"},
  };
  for (const auto& [what, by] : changes) expect_malformed(with_sum(replaced(body, what, by)));
  const std::string digest = text_of(*digest_of("weights"));
  expect_malformed(with_sum(replaced(body, digest, digest.substr(1))));
  expect_malformed(with_sum(replaced(body, digest, "A" + digest.substr(1))));
  expect_malformed(with_sum(""));
  expect_malformed(with_sum("djinn-model 1\n"));
}

TEST(StoreRecord, has_a_limit_for_everything) {
  Record record = some_record();
  record.files.assign(kFilesMax + 1, record.files.front());
  EXPECT_EQ(check(record).error().code, ErrorCode::kInvalidArgument);
  record = some_record();
  record.files[1].bytes = kSmallFileBytesMax;
  EXPECT_TRUE(check(record).ok());
  ++record.files[1].bytes;
  EXPECT_EQ(check(record).error().code, ErrorCode::kLimitExceeded);
  record = some_record();
  record.files[0].bytes = kFileBytesMax + 1;
  EXPECT_EQ(check(record).error().code, ErrorCode::kLimitExceeded);
  record = some_record();
  record.aliases.assign(kReadersMax + 1, "hf:a/b");
  EXPECT_FALSE(check(record).ok());
  record.aliases = {"hf:" + std::string(kAliasBytesMax, 'a')};
  EXPECT_FALSE(check(record).ok());
  record = some_record();
  record.files.clear();
  EXPECT_FALSE(check(record).ok());
  record = some_record();
  record.owner = Owner();
  EXPECT_FALSE(check(record).ok());
}

TEST(StoreRecord, the_largest_one_fits_its_limit) {
  Record record = some_record();
  record.readers.assign(kReadersMax, *Reader::parse("group:" + std::string(250, 'g')));
  record.aliases.assign(kReadersMax, "hf:" + std::string(kAliasBytesMax - 3, 'a'));
  record.files.clear();
  for (size_t i = 0; i < kFilesMax; ++i) {
    std::string name = std::to_string(i) + "-";
    name.resize(kFileNameBytesMax - 5, 'x');
    record.files.push_back({name + ".json", {}, kSmallFileBytesMax});
  }
  const auto text = text_of(record);
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_LE(text->size(), kRecordBytesMax);
}

TEST(StoreRecord, contents_are_the_files_in_whatever_order_under_whatever_name) {
  Record other = some_record();
  std::swap(other.files[0], other.files[1]);
  other.owner = Owner::of_user(1);
  other.readers.clear();
  EXPECT_EQ(*contents_of(other), *contents_of(some_record()));
  other.files[0].bytes = 1;
  EXPECT_NE(*contents_of(other), *contents_of(some_record()));
}

TEST(StoreRecord, who_published_it_and_administrators_read_it_whatever_its_readers_are) {
  Record record = some_record();
  record.readers = {*Reader::parse("owner")};
  EXPECT_TRUE(record.may_read({.owner = Owner::of_user(1000)}));
  EXPECT_FALSE(record.may_read({.owner = Owner::of_user(1001)}));
  EXPECT_TRUE(record.may_read({.owner = Owner::of_user(0), .is_administrator = true}));
  EXPECT_FALSE(record.may_read({}));
}

}  // namespace
}  // namespace djinn::store
