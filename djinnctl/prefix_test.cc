// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/prefix.h"

#include <gtest/gtest.h>

namespace djinn::ctl {
namespace {

const std::vector<Candidate> kCandidates{{0xabc000000001, "model bert"},
                                         {0xabc000000002, "session python"},
                                         {0x0000000000ff, "model llama"}};

TEST(Prefix, finds_the_only_one_that_begins_so) {
  EXPECT_EQ(*find_by_prefix("0", kCandidates), 2u);
  EXPECT_EQ(*find_by_prefix("abc000000002", kCandidates), 1u);
  EXPECT_EQ(*find_by_prefix("ABC000000001", kCandidates), 0u);
}

TEST(Prefix, an_ambiguous_one_lists_what_it_may_be) {
  const auto found = find_by_prefix("abc", kCandidates);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(found.error().message,
            "The id 'abc' is ambiguous. It may be abc000000001 (model bert), abc000000002 (session "
            "python). Give more of its digits.");
}

TEST(Prefix, a_long_list_of_candidates_is_cut) {
  std::vector<Candidate> many;
  for (uint64_t i = 0; i < 100; ++i) many.push_back({0xaaa000000000 + i, "model m"});
  EXPECT_LT(find_by_prefix("a", many).error().message.size(), 400u);
}

TEST(Prefix, an_unknown_one_is_not_found) {
  EXPECT_EQ(find_by_prefix("abd", kCandidates).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(find_by_prefix("a", {}).error().code, ErrorCode::kNotFound);
}

TEST(Prefix, what_cannot_begin_an_id_is_refused) {
  for (const char* const text : {"", "xyz", "abc000000001f", "0x1", "-1"}) {
    EXPECT_EQ(find_by_prefix(text, kCandidates).error().code, ErrorCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace djinn::ctl
