// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/byte_tokens.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

namespace djinn::ctl {
namespace {

TEST(ByteTokens, a_prompt_is_begin_and_its_bytes) {
  EXPECT_EQ(byte_tokens("a\xff", 256), (std::vector<int32_t>{256, 97, 255}));
  EXPECT_EQ(byte_tokens("", -1), std::vector<int32_t>{});
}

TEST(ByteTokens, every_byte_comes_back_and_nothing_else_does) {
  for (int32_t token = 0; token < 256; ++token) {
    const std::string byte{*byte_of(token)};
    EXPECT_EQ(byte_tokens(byte, -1), std::vector<int32_t>{token});
  }
  EXPECT_EQ(byte_of(256), std::nullopt);
  EXPECT_EQ(byte_of(-1), std::nullopt);
}

TEST(ByteTokens, a_model_with_a_tokenizer_is_found_out) {
  char directory[] = "/tmp/djinnctl-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const auto make = [&](const std::string& name) {
    return ::symlink("/dev/null", (std::string(directory) + "/" + name).c_str());
  };
  EXPECT_EQ(tokenizer_in(directory), TokenizerFile::kNone);
  ASSERT_EQ(make("tokenizer.model"), 0);
  EXPECT_EQ(tokenizer_in(directory), TokenizerFile::kOther);
  ASSERT_EQ(make("tokenizer.json"), 0);
  EXPECT_EQ(tokenizer_in(directory), TokenizerFile::kJson);
  std::filesystem::remove_all(directory);
}

TEST(ByteTokens, token_ids_are_read_with_commas_and_spaces_between_them) {
  EXPECT_EQ(tokens_from("12, 7 40").value(), (std::vector<int32_t>{12, 7, 40}));
  EXPECT_EQ(tokens_from("0").value(), std::vector<int32_t>{0});
  for (const char* const text : {"", ",", "x", "1,x", "1.5", "-1", "1-2", "99999999999"}) {
    const auto refused = tokens_from(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace djinn::ctl
