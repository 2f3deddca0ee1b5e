// SPDX-License-Identifier: Apache-2.0

// The doors to libdjinn-client/text, in C and in C++.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "libdjinn-client/abi/djinn.hpp"

namespace {

using TokenList = std::vector<int32_t>;

// Two bytes of "ä" by themselves, "a", and <end>, which is put behind a text.
constexpr const char* kFile = R"({
  "added_tokens": [{"id": 3, "content": "<end>", "special": true}],
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "post_processor": {"type": "TemplateProcessing", "special_tokens": {"<end>": {"ids": [3]}},
    "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<end>"}}]},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"Ã": 0, "¤": 1, "a": 2}, "merges": []}})";

class TokenizerDoors : public testing::Test {
 protected:
  TokenizerDoors() {
    char name[] = "/tmp/djinn-tokenizer-XXXXXX";
    directory_ = ::mkdtemp(name);
    write(kFile);
  }
  ~TokenizerDoors() override { std::filesystem::remove_all(directory_); }

  void write(std::string_view file) const {
    const int flags = O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC;
    const int to = ::open((directory_ + "/tokenizer.json").c_str(), flags, 0600);
    EXPECT_EQ(::write(to, file.data(), file.size()), static_cast<ssize_t>(file.size()));
    EXPECT_EQ(::close(to), 0);
  }

  std::string directory_;
};

TEST_F(TokenizerDoors, text_goes_both_ways_at_once_and_token_by_token) {
  const djinn::Tokenizer tokenizer(directory_);
  EXPECT_EQ(tokenizer.encode("aä"), (TokenList{2, 0, 1, 3}));
  EXPECT_EQ(tokenizer.encode("aä", false), (TokenList{2, 0, 1}));
  const TokenList tokens{2, 0, 1, 3};
  EXPECT_EQ(tokenizer.decode(tokens), "aä");
  EXPECT_EQ(tokenizer.decode(tokens, true), "aä<end>");
  EXPECT_EQ(tokenizer.decode({}), "");
  djinn::Text text(tokenizer);
  EXPECT_EQ(text.next(2), "a");
  EXPECT_EQ(text.next(0), "");
  EXPECT_EQ(text.next(1), "ä");
  EXPECT_EQ(text.next(0), "");
  EXPECT_EQ(text.finish(), "\xef\xbf\xbd");
}

TEST_F(TokenizerDoors, so_much_is_written_as_there_is_room_for_and_all_is_counted) {
  djinn_tokenizer* tokenizer = nullptr;
  ASSERT_EQ(djinn_tokenizer_open(directory_.c_str(), &tokenizer, nullptr), DJINN_OK);
  int32_t tokens[3] = {-1, -1, -1};
  size_t count = 0;
  EXPECT_EQ(djinn_tokenizer_encode(tokenizer, "aaaa", 4, 0, tokens, 2, &count, nullptr), DJINN_OK);
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(tokens[1], 2);
  EXPECT_EQ(tokens[2], -1);
  EXPECT_EQ(djinn_tokenizer_encode(tokenizer, nullptr, 0, 1, nullptr, 0, &count, nullptr),
            DJINN_OK);
  EXPECT_EQ(count, 1u);
  djinn_tokenizer_close(tokenizer);
}

TEST_F(TokenizerDoors, the_text_of_tokens_outlives_the_tokenizer) {
  djinn_tokenizer* tokenizer = nullptr;
  djinn_text* text = nullptr;
  ASSERT_EQ(djinn_tokenizer_open(directory_.c_str(), &tokenizer, nullptr), DJINN_OK);
  ASSERT_EQ(djinn_text_open(tokenizer, &text, nullptr), DJINN_OK);
  djinn_tokenizer_close(tokenizer);
  const char* part = nullptr;
  EXPECT_EQ(djinn_text_next(text, 2, &part, nullptr, nullptr), DJINN_OK);
  EXPECT_STREQ(part, "a");
  djinn_text_close(text);
}

TEST_F(TokenizerDoors, a_token_after_the_end_of_a_text_goes_on_with_it) {
  write(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  const djinn::Tokenizer tokenizer(directory_);
  djinn::Text text(tokenizer);
  EXPECT_EQ(text.next(0), "a");
  EXPECT_EQ(text.finish(), "");
  EXPECT_EQ(text.next(0), " a");
}

TEST_F(TokenizerDoors, what_is_wrong_is_told_by_its_code) {
  djinn_tokenizer* tokenizer = nullptr;
  djinn_error error;
  size_t count = 0;
  EXPECT_EQ(djinn_tokenizer_open("/nonexistent", &tokenizer, &error), DJINN_NOT_FOUND);
  EXPECT_EQ(djinn_tokenizer_open(nullptr, &tokenizer, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_tokenizer_encode(nullptr, "a", 1, 1, nullptr, 0, &count, &error),
            DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_text_open(nullptr, nullptr, &error), DJINN_INVALID_ARGUMENT);
  djinn_tokenizer_close(nullptr);
  djinn_text_close(nullptr);
  const djinn::Tokenizer good(directory_);
  EXPECT_EQ(djinn_tokenizer_encode(good.handle(), "a\xff", 2, 1, nullptr, 0, &count, &error),
            DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_tokenizer_encode(good.handle(), "a", 1, 1, nullptr, 4, &count, &error),
            DJINN_INVALID_ARGUMENT);
  write(R"({"normalizer": {"type": "Nmt"}})");
  EXPECT_EQ(djinn_tokenizer_open(directory_.c_str(), &tokenizer, &error), DJINN_UNSUPPORTED);
  EXPECT_NE(std::string(error.message).find("the normalizer 'Nmt'"), std::string::npos);
  EXPECT_EQ(tokenizer, nullptr);
}

}  // namespace
