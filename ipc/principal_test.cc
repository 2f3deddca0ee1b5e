// SPDX-License-Identifier: Apache-2.0

#include "ipc/principal.h"

#include <gtest/gtest.h>

#include <string>

#include "kernel/base/random.h"

namespace djinn::ipc {
namespace {

TEST(Principal, has_a_domain_and_a_path) {
  const Principal ann = Principal::parse("spiffe://lab.example/people/Ann_1").value();
  EXPECT_EQ(ann.domain(), "lab.example");
  EXPECT_EQ(ann.path(), "/people/Ann_1");
  EXPECT_FALSE(ann.is_gate());
  EXPECT_TRUE(Principal::parse("spiffe://lab/djinn-gate/box").value().is_gate());
  EXPECT_FALSE(Principal::parse("spiffe://lab/djinn-gates/box").value().is_gate());
}

TEST(Principal, of_no_other_form_is_one) {
  using std::string_literals::operator""s;
  for (const std::string& text : {""s,
                                  "spiffe://"s,
                                  "spiffe://lab"s,
                                  "spiffe://lab/"s,
                                  "spiffe:///ann"s,
                                  "spiffe://lab//ann"s,
                                  "spiffe://lab/ann/"s,
                                  "spiffe://lab/./ann"s,
                                  "spiffe://lab/../ann"s,
                                  "spiffe://Lab/ann"s,
                                  "SPIFFE://lab/ann"s,
                                  "https://lab/ann"s,
                                  "spiffe://../ann"s,
                                  "spiffe://.lab/ann"s,
                                  "spiffe://lab:1/ann"s,
                                  "spiffe://u@lab/ann"s,
                                  "spiffe://lab/ann?x"s,
                                  "spiffe://lab/ann#x"s,
                                  "spiffe://lab/a%6en"s,
                                  "spiffe://lab/ann\0"s,
                                  "spiffe://lab/a\0n"s,
                                  "spiffe://lab/a n"s,
                                  "spiffe://l\xc3\xa4"
                                  "b/ann"s,
                                  " spiffe://lab/ann"s,
                                  "spiffe://lab/" + std::string(kPrincipalBytesMax, 'a')}) {
    const auto parsed = Principal::parse(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  }
  const std::string longest = "spiffe://lab/";
  EXPECT_TRUE(Principal::parse(longest + std::string(kPrincipalBytesMax - longest.size(), 'a')));
}

TEST(Principal, that_was_taken_is_what_was_read) {
  Random random(11);
  constexpr std::string_view kParts[] = {"spiffe://", "lab", "/", ".", "..", "ann", "A", "_",
                                         "%",         ":",   "@", "?", "#",  "\n",  "-"};
  int taken = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string text = random.below(4) == 0 ? "" : "spiffe://lab/";
    for (uint64_t parts = random.below(7); parts > 0; --parts) {
      text += kParts[random.below(std::size(kParts))];
    }
    const auto parsed = Principal::parse(text);
    if (!parsed) continue;
    ++taken;
    EXPECT_EQ(parsed->text(), text);
    EXPECT_EQ("spiffe://" + std::string(parsed->domain()) + std::string(parsed->path()), text);
    EXPECT_EQ(text.find_first_of("%:@?#\n", 9), std::string::npos);
    EXPECT_EQ((text + "/").find("/../", 9), std::string::npos);
  }
  EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace djinn::ipc
