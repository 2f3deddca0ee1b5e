// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/object.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

namespace djinn::ctl {
namespace {

const std::vector<Candidate> kCandidates{{0xabc000000001, "model bert", "bert", "/srv/bert"},
                                         {0xabc000000002, "session python", "", ""},
                                         {0x0000000000ff, "model llama", "org/llama", "/srv/llama"},
                                         {0xdef000000001, "model two", "two", "/srv/two"},
                                         {0xdef000000002, "model two", "two", "/srv/other"},
                                         {0xfff000000000, "model abc0", "abc0", ""}};

TEST(Object, is_the_only_one_whose_id_begins_so) {
  EXPECT_EQ(*find_object("0000", kCandidates), 2u);
  EXPECT_EQ(*find_object("abc000000002", kCandidates), 1u);
  EXPECT_EQ(*find_object("ABC000000001", kCandidates), 0u);
}

TEST(Object, is_the_only_model_of_that_name_or_path) {
  EXPECT_EQ(*find_object("bert", kCandidates), 0u);
  EXPECT_EQ(*find_object("org/llama", kCandidates), 2u);
  EXPECT_EQ(*find_object("/srv/llama", kCandidates), 2u);
  EXPECT_EQ(*find_object("/srv/x/../llama/", kCandidates), 2u);
  EXPECT_EQ(*find_object("/srv/llama/model.safetensors", kCandidates), 2u);
  EXPECT_EQ(*find_object("/srv/other", kCandidates), 4u);
}

TEST(Object, may_be_named_as_another_calls_it) {
  const std::vector<Candidate> candidates{
      {1, "model one", "one", "/srv/one"},
      {2, "model two", "two", "/srv/two", {{"mine", "/srv/mine"}}}};
  EXPECT_EQ(*find_object("mine", candidates), 1u);
  EXPECT_EQ(*find_object("/srv/mine/", candidates), 1u);
  EXPECT_FALSE(find_object("/srv", candidates));
}

TEST(Object, may_be_named_as_a_terminal_showed_it) {
  const Candidate candidate{1, "model", "\u05d0\u05d1", "/srv/\u05d0\u05d1"};
  const std::span one(&candidate, 1);
  EXPECT_TRUE(find_object("\u2068\u05d0\u05d1\u2069", one));
  EXPECT_TRUE(find_object("\u2068/srv/\u05d0\u05d1\u2069", one));
}

TEST(Object, may_be_named_by_a_link_to_its_path) {
  std::string directory = "/tmp/djinn-object-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::filesystem::path place = std::filesystem::canonical(directory) / "model-1";
  std::filesystem::create_directory(place);
  std::filesystem::create_directory_symlink(place, directory + "/link");
  const Candidate candidate{1, "model", "model", place};
  const auto found = find_object(directory + "/link", std::span(&candidate, 1));
  std::filesystem::remove_all(directory);
  EXPECT_TRUE(found);
}

TEST(Object, that_is_ambiguous_lists_what_it_may_be) {
  const auto found = find_object("abc00", kCandidates);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(found.error().message,
            "'abc00' is ambiguous. It may be abc000000001 (model bert), abc000000002 (session "
            "python). Give an id, or more of its digits, or a model's path.");
  const auto twice = find_object("two", kCandidates);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().message,
            "'two' is ambiguous. It may be def000000001 (model two), def000000002 (model two). "
            "Give an id, or more of its digits, or a model's path.");
}

TEST(Object, that_is_ambiguous_tells_models_of_one_path_apart) {
  ipc::ModelReport model;
  model.label = "bytes";
  model.path = "/srv/bytes";
  model.bytes = 5 << 20;
  model.state = ipc::ModelState::kResident;
  model.model = ModelId{0xabc000000001};
  std::vector<Candidate> two{candidate_of(model)};
  model.model = ModelId{0xabc000000002};
  model.plan = 0xbc68b304;
  two.push_back(candidate_of(model));
  EXPECT_EQ(find_object("bytes", two).error().message,
            "'bytes' is ambiguous. It may be abc000000001 (model bytes from /srv/bytes, 5.0 MiB, "
            "resident, plan -), abc000000002 (model bytes from /srv/bytes, 5.0 MiB, resident, plan "
            "bc68b304). Give an id, or more of its digits, or a model's path.");
}

// So that nobody's model is taken for another's by a name that reads like an id.
TEST(Object, a_name_that_begins_ids_of_others_is_ambiguous) {
  const auto found = find_object("abc0", kCandidates);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("fff000000000 (model abc0)"), std::string::npos);
  EXPECT_NE(found.error().message.find("abc000000001 (model bert)"), std::string::npos);
  std::vector<Candidate> spoof = kCandidates;
  spoof[5].name = "abc000000001";
  EXPECT_EQ(*find_object("abc000000001", spoof), 0u) << "a whole id";
}

TEST(Object, a_short_name_is_no_id_of_another) {
  const std::vector<Candidate> candidates{{0xe50000000001, "model m", "m", "/srv/m"},
                                          {0x100000000001, "model e5", "e5", "/srv/e5"}};
  EXPECT_EQ(*find_object("e5", candidates), 1u);
  EXPECT_EQ(find_object("1", candidates).error().code, ErrorCode::kNotFound);
}

TEST(Object, a_long_list_of_candidates_is_cut) {
  std::vector<Candidate> many;
  for (uint64_t i = 0; i < 100; ++i) many.push_back({0xaaa000000000 + i, "model m", "", ""});
  EXPECT_LT(find_object("aaaa", many).error().message.size(), 400u);
}

TEST(Object, that_is_unknown_is_not_found) {
  for (const char* const text : {"", "abd", "xyz", "abc000000001f", "0x1", "-1", "/srv"}) {
    EXPECT_EQ(find_object(text, kCandidates).error().code, ErrorCode::kNotFound) << text;
  }
  EXPECT_EQ(find_object("a", {}).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace djinn::ctl
