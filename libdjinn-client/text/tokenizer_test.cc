// SPDX-License-Identifier: Apache-2.0

// That tokens are those of `tokenizers` is tested in tests/e2e/test_tokenizer.py; here is what does
// not need it: refusals, broken files and texts, bounds.
#include "libdjinn-client/text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "libdjinn-client/text/settings.h"
#include "libdjinn-client/text/tokenizer_file.h"
#include "libdjinn-client/text/unicode.h"

namespace djinn::text {
namespace {

using Ids = std::vector<int32_t>;

// Of two letters, their pair and a space: "a" 0, "b" 1, "ab" 2, "Ġ" 3, and <end> 4.
Json small_file() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 4, "content": "<end>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                      "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<end>",
                 "type_id": 0}}],
      "pair": [], "special_tokens": {"<end>": {"id": "<end>", "ids": [4], "tokens": ["<end>"]}}},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
              "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
              "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": [["a", "b"]]}})");
}

Tokenizer small() {
  auto made = Tokenizer::read(small_file().dump());
  EXPECT_TRUE(made) << made.error().message;
  return std::move(made).value();
}

Json changed(const char* pointer, const char* value) {
  Json file = small_file();
  file[Json::json_pointer(pointer)] = Json::parse(value);
  return file;
}

Error refusal_of(const Json& file) {
  auto made = Tokenizer::read(file.dump());
  return made ? Error{ErrorCode::kOk, "it was read"} : made.error();
}

TEST(Tokenizer, text_becomes_tokens_and_these_become_text) {
  const Tokenizer tokenizer = small();
  EXPECT_EQ(tokenizer.encode("ab<end> AB", SpecialTokens::kWith).value(), (Ids{2, 4, 3, 2, 4}));
  EXPECT_EQ(tokenizer.encode("ba", SpecialTokens::kWithout).value(), (Ids{1, 0}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 3, 1, 4, 77, -1}, SpecialTokens::kWithout), "ab b");
  EXPECT_EQ(tokenizer.decode(Ids{2, 4}, SpecialTokens::kWith), "ab<end>");
}

TEST(Tokenizer, merges_of_old_files_are_texts) {
  const auto made = Tokenizer::read(changed("/model/merges", R"(["#version: 0.2", "a b"])").dump());
  ASSERT_TRUE(made);
  EXPECT_EQ(made->encode("ab", SpecialTokens::kWithout).value(), Ids{2});
}

TEST(Tokenizer, what_is_not_known_is_refused_by_its_name) {
  const std::pair<Json, const char*> refused[] = {
      {changed("/normalizer", R"({"type": "Nmt"})"), "the normalizer 'Nmt'"},
      {changed("/pre_tokenizer", R"({"type": "UnicodeScripts"})"), "'UnicodeScripts'"},
      {changed("/pre_tokenizer/new_key", "1"), "'new_key' of its pre-tokenizer"},
      {changed("/decoder", R"({"type": "CTC"})"), "the decoder 'CTC'"},
      {changed("/post_processor", R"({"type": "Other"})"), "the post-processor 'Other'"},
      {changed("/model/type", R"("Other")"), "the model 'Other'"},
      {changed("/model/dropout", "0.1"), "'dropout'"},
      {changed("/added_tokens/0/id", "9"), "as 9, and not as 4"},
      {changed("/more", "{}"), "'more' of its file"},
      {changed("/post_processor/single", "[]"), "a template that does not have the text once"},
  };
  for (const auto& [file, told] : refused) {
    const Error error = refusal_of(file);
    EXPECT_EQ(error.code, ErrorCode::kUnsupported) << told;
    EXPECT_NE(error.message.find(told), std::string::npos) << error.message;
  }
}

TEST(Tokenizer, what_is_broken_is_told_as_such) {
  const Json broken[] = {
      Json::array(),
      changed("/model/vocab/b", "0"),
      changed("/model/vocab/b", "-1"),
      changed("/model/vocab/b", "4194304"),
      changed("/model/vocab/b", "1.5"),
      changed("/model/vocab/b", R"("x")"),
      changed("/model/vocab", R"([["a", 0.5]])"),
      changed("/model/vocab", "7"),
      changed("/model/merges", R"([["a", "x"]])"),
      changed("/model/merges", R"([["a"]])"),
      changed("/model/merges", R"([["a", "b", "a"]])"),
      changed("/model/merges", R"(["a b a"])"),
      changed("/model/merges", R"([[["a"], "b"]])"),
      changed("/model/fuse_unk", "1"),
      changed("/added_tokens", "{}"),
      changed("/added_tokens/0/content", R"("")"),
      changed("/added_tokens/1", small_file()["added_tokens"][0].dump().c_str()),
      changed("/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "("},
                                    "behavior": "Isolated", "invert": false})"),
      changed("/post_processor/special_tokens", "{}"),
      changed("/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})"),
  };
  for (const Json& file : broken) {
    EXPECT_EQ(refusal_of(file).code, ErrorCode::kMalformed)
        << file.dump() << refusal_of(file).message;
  }
  for (const char* const text :
       {"", "{", "{}", "[[", "\"\xff\"", "{\"model\": {\"vocab\": {\"a\""}) {
    const auto made = Tokenizer::read(text);
    ASSERT_FALSE(made) << text;
    EXPECT_EQ(made.error().code, ErrorCode::kMalformed) << text;
  }
}

TEST(Tokenizer, nesting_is_bounded) {
  EXPECT_EQ(Tokenizer::read("{\"normalizer\": " + std::string(1'000'000, '[')).error().code,
            ErrorCode::kMalformed);
  EXPECT_EQ(Tokenizer::read("{\"model\": {\"merges\": " + std::string(1'000'000, '[')).error().code,
            ErrorCode::kMalformed);
}

// The file with bytes changed, cut out and doubled, in so many ways.
TEST(Tokenizer, a_file_that_was_damaged_is_refused_or_read_and_never_more) {
  const std::string whole = small_file().dump();
  std::mt19937 draw(15);
  int read = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string file = whole;
    for (int step = 0; step < 1 + i % 4; ++step) {
      const size_t at = draw() % file.size();
      switch (draw() % 3) {
        case 0:
          file[at] = "[]{}\",:0x-"[draw() % 10];
          break;
        case 1:
          file.erase(at, draw() % 8);
          break;
        default:
          file.insert(at, file.substr(draw() % file.size(), draw() % 40));
      }
    }
    const auto made = Tokenizer::read(file);
    if (!made) continue;
    ++read;
    const auto tokens = made->encode("ab <end>\xc3\xa4 b\n", SpecialTokens::kWith);
    if (!tokens) continue;
    const std::string text = made->decode(*tokens, SpecialTokens::kWith);
    EXPECT_EQ(valid_bytes(text), text.size()) << file;
  }
  EXPECT_GT(read, 20);  // of some the damage is no harm
}

TEST(Tokenizer, text_that_is_no_utf8_is_refused_with_the_place) {
  const Tokenizer tokenizer = small();
  for (const char* const text :
       {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xc0\x80"}) {
    const auto tokens = tokenizer.encode(text, SpecialTokens::kWith);
    ASSERT_FALSE(tokens) << text;
    EXPECT_EQ(tokens.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(tokens.error().message.find("at byte 2"), std::string::npos);
  }
}

// Were it quadratic, it would take hours.
TEST(Tokenizer, a_word_of_a_megabyte_takes_a_moment) {
  std::string word;
  while (word.size() < size_t{1} << 20) word += "ab";
  const auto tokens = small().encode(word, SpecialTokens::kWithout);
  ASSERT_TRUE(tokens);
  EXPECT_EQ(*tokens, Ids(word.size() / 2, 2));
}

TEST(Tokenizer, a_pattern_that_tries_for_ever_is_an_error) {
  const auto made = Tokenizer::read(
      changed("/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(x+x+)+y"},
                                    "behavior": "Isolated", "invert": false})")
          .dump());
  ASSERT_TRUE(made) << made.error().message;
  const auto tokens = made->encode(std::string(60, 'x') + "zy", SpecialTokens::kWith);
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().code, ErrorCode::kLimitExceeded);
}

TEST(Tokenizer, a_character_whose_bytes_come_in_several_tokens_is_told_whole) {
  Json file = changed("/model/vocab", R"({"Ã": 0, "¤": 1, "ä": 2, "a": 3})");
  file["model"]["merges"] = Json::array();
  const auto made = Tokenizer::read(file.dump());
  ASSERT_TRUE(made) << made.error().message;
  auto stream = made->stream(SpecialTokens::kWithout);
  EXPECT_EQ(stream.next(0), "");
  EXPECT_EQ(stream.next(1), "\xc3\xa4");
  EXPECT_EQ(stream.next(0), "");
  EXPECT_EQ(stream.next(3),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(stream.next(0), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace djinn::text
