// SPDX-License-Identifier: Apache-2.0

// That tokens are those of `tokenizers` is tested in tests/e2e/test_tokenizer.py; here is what does
// not need it: refusals, broken files and texts, bounds.
#include "libdjinn-client/text/tokenizer.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <functional>
#include <random>

#include "libdjinn-client/text/regex.h"
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

// A chain of so many of one.
std::string sequence_of(const char* list, const char* one, int count) {
  Json all = Json::array();
  for (int i = 0; i < count; ++i) all.push_back(Json::parse(one));
  return Json{{"type", "Sequence"}, {list, all}}.dump();
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
      {changed("/post_processor", R"({"type": "Sequence", "processors": [
           {"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]},
           {"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]}]})"),
       "a post-processor behind another one with tokens"},
      {changed("/model/vocab/b", "0"), "two words with the id 0"},
      {changed("/decoder", R"({"type": "BPEDecoder", "suffix": ""})"),
       "a BPEDecoder without a suffix"},
      {changed("/pre_tokenizer", R"({"type": "Split", "pattern": {"String": ""},
                                     "behavior": "Isolated", "invert": false})"),
       "an empty pattern of its pre-tokenizer"},
      {changed("/decoder", sequence_of("decoders", R"({"type": "Replace", "content": "aaaaaaaa",
                                                      "pattern": {"String": "a"}})",
                                       3)
                               .c_str()),
       "a decoder that makes texts so much longer"},
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

std::string in_base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char byte : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(byte);
    for (count += 8; count >= 6; count -= 6) out += kDigits[bits >> (count - 6) & 63];
  }
  if (count > 0) out += kDigits[bits << (6 - count) & 63];
  return out;
}

// A charsmap that makes a text of each "A".
std::string charsmap_of_a(std::string_view text) {
  std::array<uint32_t, 1 + 'A' + 1> units = {};
  units[0] = (units.size() - 1) * sizeof(uint32_t);  // of the trie, whose root is the next
  units[1 + 'A'] = 'A' | 1 << 8 | 1 << 10;
  units[1 + ('A' ^ 1)] = 1u << 31;
  std::string bytes(reinterpret_cast<const char*>(units.data()), sizeof units);
  bytes += text;
  return in_base64(bytes + '\0');
}

// SentencePiece's form: "a" 0, "b" 1, "▁a" 2, unknown 3; and tokens that take spaces with them.
Json sentence_piece_file() {
  Json file = small_file();
  file["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", charsmap_of_a("a")}};
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}};
  file["decoder"] = file["pre_tokenizer"];
  file["model"] = Json::parse(R"({"type": "Unigram", "unk_id": 3, "byte_fallback": false,
    "vocab": [["a", -1.0], ["b", -2.0], ["▁a", -1.5], ["<unk>", 0.0]]})");
  file["added_tokens"].push_back(
      Json::parse(R"({"id": 5, "content": "<both>", "lstrip": true, "rstrip": true})"));
  file["added_tokens"].push_back(
      Json::parse(R"({"id": 6, "content": "ba", "single_word": true, "normalized": true})"));
  return file;
}

TEST(Tokenizer, a_sentence_piece_file_is_read_with_its_charsmap_and_its_tokens_strips) {
  const auto made = Tokenizer::read(sentence_piece_file().dump());
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->encode("Ab <both>  a", SpecialTokens::kWithout).value(), (Ids{2, 1, 5, 2}));
}

// The files with bytes changed, cut out and doubled, in so many ways.
TEST(Tokenizer, a_file_that_was_damaged_is_refused_or_read_and_never_more) {
  const std::string seeds[] = {small_file().dump(), sentence_piece_file().dump()};
  std::mt19937 draw(15);
  int read = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string file = seeds[i % 2];
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
    const auto tokens = made->encode("ab <end>\xc3\xa4 Ab <both> \n", SpecialTokens::kWith);
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

TEST(Tokenizer, errors_end_at_a_character_and_steer_no_terminal) {
  for (size_t size = 55; size < 65; ++size) {
    const std::string name = std::string(size, 'x') + "\u00e9\u00e9\u00e9";
    const Error error = refusal_of(changed("/normalizer/type", Json(name).dump().c_str()));
    EXPECT_EQ(valid_bytes(error.message), error.message.size());
  }
  const Error error = refusal_of(changed("/normalizer/type", R"("\u001b]0;\u009b\u202e\u2066")"));
  EXPECT_NE(error.message.find("'?]0;" + std::string(3, '?') + "'"), std::string::npos)
      << error.message;
}

TEST(Tokenizer, once_a_text_that_the_file_makes_too_long_is_an_error_that_says_by_what) {
  const std::string more = R"({"type": "Replace", "pattern": {"String": "a"},
                               "content": "aaaaaaaaaaaaaaaa"})";
  const std::string prefix = R"({"type": "Metaspace", "replacement": "x", "split": false})";
  const std::string bytes = R"({"type": "ByteLevel", "use_regex": false})";
  Json mapped = sentence_piece_file();
  mapped["normalizer"]["precompiled_charsmap"] = charsmap_of_a(std::string(1 << 20, 'a'));
  const std::pair<Json, const char*> growing[] = {
      {changed("/normalizer", sequence_of("normalizers", more.c_str(), 9).c_str()),
       "the normalizer 'Replace'"},
      {changed("/pre_tokenizer", sequence_of("pretokenizers", bytes.c_str(), 26).c_str()),
       "the pre-tokenizer 'ByteLevel'"},
      {mapped, "the normalizer 'Precompiled'"},
  };
  const std::string text = "a\u00e9" + std::string(40, 'A');
  for (const auto& [file, told] : growing) {
    const auto made = Tokenizer::read(file.dump());
    ASSERT_TRUE(made) << made.error().message;
    const auto tokens = made->encode(text, SpecialTokens::kWith);
    ASSERT_FALSE(tokens) << told;
    EXPECT_EQ(tokens.error().code, ErrorCode::kLimitExceeded);
    EXPECT_NE(tokens.error().message.find(told), std::string::npos) << tokens.error().message;
  }
}

TEST(Tokenizer, once_pieces_that_are_too_long_together_are_an_error) {
  const std::string content(kAffixBytesMax, 'x');
  const auto made = Tokenizer::read(
      changed("/normalizer", Json{{"type", "Prepend"}, {"prepend", content}}.dump().c_str())
          .dump());
  ASSERT_TRUE(made) << made.error().message;
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "a<end>";
  const auto tokens = made->encode(text, SpecialTokens::kWith);
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().code, ErrorCode::kLimitExceeded);
}

TEST(Tokenizer, what_goes_to_each_word_is_short) {
  const std::string text = Json(std::string(kAffixBytesMax + 1, 'x')).dump();
  Json no_merges = changed("/model/continuing_subword_prefix", text.c_str());
  no_merges["model"]["merges"] = Json::array();
  const Json long_ones[] = {
      changed("/model/end_of_word_suffix", text.c_str()),
      no_merges,
      changed("/normalizer", (R"({"type": "Prepend", "prepend": )" + text + "}").c_str()),
      changed(
          "/normalizer",
          (R"({"type": "Replace", "pattern": {"String": "a"}, "content": )" + text + "}").c_str()),
      changed("/added_tokens/0/content", text.c_str()),
  };
  for (const Json& file : long_ones) {
    EXPECT_EQ(refusal_of(file).code, ErrorCode::kLimitExceeded) << refusal_of(file).message;
  }
}

// Of so many pairs of words all belong into one slot of a table: ids beside one another on the
// left, and for each the first on the right that leads there.
Json file_of_merges_in_one_slot(uint64_t pairs) {
  const uint64_t slots = std::bit_ceil(pairs * 2 + 1);
  const auto slot_of = [&](uint64_t left, uint64_t right) {
    return ((left << 32 | right) * 0x9e3779b97f4a7c15) >> 32 & (slots - 1);
  };
  std::vector<std::vector<uint64_t>> rights(slots);  // by the slot of each behind an id of 0
  for (uint64_t right = pairs; right < pairs * 16; ++right) {
    rights[slot_of(0, right)].push_back(right);
  }
  Json file = small_file();
  Json& vocabulary = file["model"]["vocab"] = Json::object();
  Json& merges = file["model"]["merges"] = Json::array();
  file["added_tokens"] = Json::array();
  file["post_processor"] = nullptr;
  for (uint64_t left = 0; left < pairs; ++left) {
    std::vector<uint64_t>& those = rights[(0 - slot_of(left, 0)) & (slots - 1)];
    if (those.empty()) continue;
    const std::string one = "l" + std::to_string(left), other = "r" + std::to_string(left);
    vocabulary[one] = left;
    vocabulary[other] = those.back();
    vocabulary[one + other] = pairs * 16 + left;
    merges.push_back({one, other});
    those.pop_back();
  }
  return file;
}

// So many words whose hashes end alike.
Json file_of_words_in_one_slot(size_t words) {
  const size_t slots = std::bit_ceil(words * 2 + 1);
  Json file = small_file();
  Json& vocabulary = file["model"]["vocab"] = Json::object();
  file["model"]["merges"] = Json::array();
  for (uint64_t i = 0; vocabulary.size() < words; ++i) {
    const std::string word = std::to_string(i);
    if (std::hash<std::string_view>()(word) % slots == 0) vocabulary[word] = vocabulary.size();
  }
  return file;
}

TEST(Tokenizer, words_and_merges_that_were_chosen_to_take_for_ever_are_refused) {
  const Json of_merges = file_of_merges_in_one_slot(4000);
  EXPECT_GT(of_merges["model"]["merges"].size(), 2000u);
  for (const Json& file : {of_merges, file_of_words_in_one_slot(1000)}) {
    const Error error = refusal_of(file);
    EXPECT_EQ(error.code, ErrorCode::kMalformed) << error.message;
    EXPECT_NE(error.message.find("chosen to take for ever"), std::string::npos) << error.message;
  }
}

TEST(Tokenizer, ci_once_what_a_file_makes_of_its_bytes_is_bounded) {
  const auto code_of = [](const std::string& file) { return Tokenizer::read(file).error().code; };
  std::string settings = "{\"added_tokens\": [";
  for (size_t i = 0; i < kSettingsMax; ++i) settings += "0,";
  EXPECT_EQ(code_of(settings + "0]}"), ErrorCode::kLimitExceeded);
  std::string merges = "{\"model\": {\"merges\": [";
  for (int64_t i = 0; i < kTokensMax; ++i) merges += "\"a b\",";
  EXPECT_EQ(code_of(merges + "\"a b\"]}}"), ErrorCode::kLimitExceeded);
  const std::string word(size_t{1} << 20, 'a');
  std::string scores = "{\"model\": {\"vocab\": [";
  for (size_t bytes = 0; bytes < kScoredBytesMax; bytes += word.size()) {
    scores += "[\"" + word + "\", 0.5],";
  }
  EXPECT_EQ(code_of(scores + "[\"a\", 0.5]]}}"), ErrorCode::kLimitExceeded);
}

Json split_by(const std::string& regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json file_of_splits(const std::vector<std::string>& patterns) {
  Json all = Json::array();
  for (const std::string& one : patterns) all.push_back(split_by(one));
  return changed("/pre_tokenizer",
                 Json{{"type", "Sequence"}, {"pretokenizers", all}}.dump().c_str());
}

TEST(Tokenizer, a_file_has_few_stages_and_patterns_and_these_are_short_together) {
  const std::string half(kPatternBytesMax / 2, 'x');
  for (const Json& fits : {file_of_splits(std::vector<std::string>(kPatternsMax, "x")),
                           file_of_splits({half, half})}) {
    EXPECT_EQ(refusal_of(fits).code, ErrorCode::kOk) << refusal_of(fits).message;
  }
  const std::string stages = sequence_of("normalizers", R"({"type": "NFC"})", kStagesMax);
  const std::pair<Json, const char*> refused[] = {
      {file_of_splits(std::vector<std::string>(kPatternsMax + 1, "x")),
       "more than 64 regular expressions"},
      {file_of_splits({half, half, "x"}), "more than 8192 bytes of regular expressions"},
      {changed("/normalizer", stages.c_str()), "more than 256 stages"},
      {changed("/normalizer",
               Json{{"type", "Replace"}, {"pattern", {{"String", half}}}, {"content", "y"}}
                   .dump()
                   .c_str()),
       "a pattern of 4096 bytes"},
  };
  for (const auto& [file, told] : refused) {
    const Error error = refusal_of(file);
    EXPECT_EQ(error.code, ErrorCode::kLimitExceeded) << told;
    EXPECT_NE(error.message.find(told), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("Another library"), std::string::npos) << error.message;
  }
}

// Compiled, or searched for, these would take for ever.
TEST(Tokenizer, a_pattern_without_bounds_is_refused_before_it_is_compiled) {
  const auto nested = [](const std::string& begin, int depth) {
    std::string pattern;
    for (int i = 0; i < depth; ++i) pattern += begin;
    return pattern + "a" + std::string(static_cast<size_t>(depth), ')');
  };
  std::string calls;
  for (int i = 0; i < 40; ++i) {
    const std::string next = "\\g<a" + std::to_string(i + 1) + ">";
    calls += "(?<a" + std::to_string(i) + ">" + next + "|b" + next + ")";
  }
  const std::pair<std::string, ErrorCode> refused[] = {
      {nested("(?<=a|bc", 500), ErrorCode::kLimitExceeded},
      {nested("(?<!a|(?<=b|", kLookBehindsMax / 2) + "|(?<!c)", ErrorCode::kLimitExceeded},
      {calls + "(?<a40>x)", ErrorCode::kUnsupported},
      {"(?<a>x\\g'a'?)", ErrorCode::kUnsupported},
      {nested("(?~", 4), ErrorCode::kUnsupported},
      {std::string(kPatternBytesMax + 1, 'x'), ErrorCode::kLimitExceeded},
  };
  for (const auto& [pattern, code] : refused) {
    const auto made = Regex::compile(pattern);
    ASSERT_FALSE(made) << pattern;
    EXPECT_EQ(made.error().code, code) << made.error().message;
    EXPECT_NE(made.error().message.find("Another library"), std::string::npos);
  }
  EXPECT_TRUE(Regex::compile(nested("(?<=a|bc", kLookBehindsMax)));
}

TEST(Tokenizer, a_word_that_the_vocabulary_lacks_is_told) {
  const auto tokens = Tokenizer::read(changed("/model/unk_token", R"("<none>")").dump())
                          .value()
                          .encode("abz", SpecialTokens::kWith);
  ASSERT_FALSE(tokens);
  EXPECT_NE(tokens.error().message.find("'z'"), std::string::npos) << tokens.error().message;
}

// Were these quadratic, they would take hours.
TEST(Tokenizer, a_megabyte_of_marks_is_put_in_order_in_a_moment) {
  constexpr size_t kMarks = size_t{1} << 18;
  const std::string above = "\u0302";
  const std::string below = "\u0316";
  std::string text = "b";
  std::string ordered = "b";
  for (size_t i = 0; i < kMarks; ++i) text += above;
  for (size_t i = 0; i < kMarks; ++i) text += below;
  for (size_t i = 0; i < kMarks; ++i) ordered += below;
  for (size_t i = 0; i < kMarks; ++i) ordered += above;
  EXPECT_TRUE(normalized(text, NormalForm::kC) == ordered);
  EXPECT_TRUE(normalized(text, NormalForm::kKD) == ordered);
  // Of what decomposes the marks are put in order, too: U+0344 is U+0308 U+0301.
  EXPECT_EQ(normalized("a\u0344\u0316", NormalForm::kD), "a\u0316\u0308\u0301");
  EXPECT_EQ(normalized("\u00e9\u0316", NormalForm::kC), "\u00e9\u0316");
}

TEST(Tokenizer, once_a_file_of_fifty_thousand_added_tokens_takes_a_moment) {
  Json file = small_file();
  for (int i = 5; i < 50'000; ++i) {
    file["added_tokens"].push_back({{"id", i}, {"content", "<" + std::to_string(i) + ">"}});
  }
  const auto made = Tokenizer::read(file.dump());
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->encode("<49999>", SpecialTokens::kWithout).value(), Ids{49'999});
}

TEST(Tokenizer, once_a_word_of_a_megabyte_takes_a_moment) {
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

// Each search is within its bounds; all of them together are not.
TEST(Tokenizer, all_searches_of_a_text_have_one_bound) {
  const auto regex = Regex::compile("(?:x+x+)+y|z");
  ASSERT_TRUE(regex) << regex.error().message;
  std::string text;
  for (int i = 0; i < 4; ++i) text += "xxxxxxxxxxxxxxxxxz";
  Retries retries;
  ASSERT_TRUE(regex->find_all(text, retries));
  for (int i = 0; i < 4000; ++i) text += "xxxxxxxxxxxxxxxxxz";
  Retries of_long_one;
  const auto found = regex->find_all(text, of_long_one);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kLimitExceeded);
}

// Nor does it help to split it first: in each piece the searches would be within them.
TEST(Tokenizer, all_pieces_of_a_text_have_one_bound) {
  const auto made = Tokenizer::read(file_of_splits({"z", "(?:x+x+)+y"}).dump());
  ASSERT_TRUE(made) << made.error().message;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "xxxxxxxxxxxxxxxxxz";
  const auto tokens = made->encode(text, SpecialTokens::kWith);
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
