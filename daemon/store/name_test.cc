// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/name.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

namespace djinn::store {
namespace {

using std::string_literals::operator""s;

TEST(StoreName, a_name_without_a_tag_is_the_latest) {
  EXPECT_EQ(Name::parse("gpt2")->text(), "gpt2:latest");
  EXPECT_EQ(Name::parse("gpt2:v1.5")->text(), "gpt2:v1.5");
  EXPECT_EQ(Name::parse("gpt2")->user(), "");
  EXPECT_EQ(Name::parse("~ann/gpt2")->user(), "ann");
  const auto far = Name::parse("~spiffe://example.org/ci/7/gpt2:v1");
  ASSERT_TRUE(far.ok());
  EXPECT_EQ(far->user(), "spiffe://example.org/ci/7");
}

TEST(StoreName, what_steers_paths_or_looks_like_others_is_refused) {
  const std::string names[] = {
      "",
      ".",
      "..",
      "../gpt2",
      "a/b",
      "/etc/passwd",
      ".hidden",
      "-x",
      "gpt2:",
      ":v1",
      "gpt2:v1:v2",
      "gpt2:../x",
      "gpt 2",
      "gpt2\n",
      "gpt2\0"s,
      "gpt2\0x"s,
      "g\xd1\x80t2",
      "gpt\xef\xbc\x92",
      "\xe2\x80\xaegpt2",
      "gpt2\xff",
      "~",
      "~/",
      "~ann",
      "~ann/",
      "~/gpt2",
      "~an n/gpt2",
      "~ann\x7f/gpt2",
      "~\xc3\xa4nn/gpt2",
      "~ann/..",
      "gpt2%2F",
      std::string(65, 'a'),
      "a:" + std::string(65, 'b'),
      "~" + std::string(300, 'u') + "/a",
  };
  for (const std::string& name : names) {
    const auto parsed = Name::parse(name);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument) << name;
  }
}

TEST(StoreName, each_name_has_a_file_of_its_own_that_leads_back_to_it) {
  const std::string_view names[] = {"gpt2",      "gpt2:v1",      "GPT2",          "~ann/gpt2",
                                    "~../gpt2",  "~a/../b/gpt2", "~./gpt2",       "~a%2Fb/gpt2",
                                    "~a/b/gpt2", "~a:b/gpt2",    "~EX\\ann/gpt2", "~~/gpt2"};
  std::set<std::string> files;
  for (const std::string_view text : names) {
    const auto name = Name::parse(text);
    ASSERT_TRUE(name.ok()) << text;
    const std::string file = name->file_name();
    EXPECT_TRUE(files.insert(file).second) << file;
    EXPECT_EQ(file.find('/'), std::string::npos) << file;
    EXPECT_FALSE(file.starts_with('.')) << file;
    const auto again = Name::of_file(file);
    ASSERT_TRUE(again.ok()) << file;
    EXPECT_EQ(*again, *name);
  }
}

TEST(StoreName, a_file_that_is_no_escape_of_ours_is_no_name) {
  for (const std::string_view file :
       {"gpt2", "gpt2:v1", "gpt2%3av1", "gpt2%3Av1%", "gpt2%3Av1%4", "gpt2%3Av1%zz", "%67pt2%3Av1",
        "..", "gpt2%3A%2E%2E", "gpt2%3Av1%00", "%+3gpt2%3Av1"}) {
    const auto name = Name::of_file(file);
    ASSERT_FALSE(name.ok()) << file;
    EXPECT_EQ(name.error().code, ErrorCode::kMalformed) << file;
  }
}

}  // namespace
}  // namespace djinn::store
