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

TEST(ByteTokens, a_model_with_a_tokenizer_is_refused_and_told_where_to_go) {
  char directory[] = "/tmp/djinnctl-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  EXPECT_TRUE(check_has_no_tokenizer(directory));
  ASSERT_EQ(::symlink("/dev/null", (std::string(directory) + "/tokenizer.json").c_str()), 0);
  const Status refused = check_has_no_tokenizer(directory);
  std::filesystem::remove_all(directory);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  // Which class of it runs the model depends on the model's type.
  EXPECT_TRUE(refused.error().message.ends_with("Use the Python package."));
}

}  // namespace
}  // namespace djinn::ctl
