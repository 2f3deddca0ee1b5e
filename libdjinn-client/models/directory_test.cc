// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

namespace djinn::client {
namespace {

// A directory that goes with the test.
class Directory {
 public:
  Directory() { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  void write(const std::string& name, const std::string& text) const {
    const Fd fd(::open((path_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void write_index(const std::string& index) const {
    write("config.json", "{}");
    write("model.safetensors.index.json", index);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/djinn-directory-test-XXXXXX";
};

ModelConfig parsed_config(const std::string& json) {
  auto config = ModelConfig::parse(json);
  EXPECT_TRUE(config) << json;
  return config ? *std::move(config) : ModelConfig();
}

std::string content_of(const Fd& fd) {
  std::string text(100, '\0');
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// --- ModelConfig

TEST(ModelConfig, gives_each_kind_of_scalar_and_those_one_level_down) {
  const ModelConfig config = parsed_config(
      R"({"n": 12, "eps": 1e-5, "act": "gelu", "tied": true, "none": null,
          "rope": {"theta": 10000.0, "type": "default", "deep": {"x": 1}}})");
  EXPECT_EQ(*config.integer("n"), 12);
  EXPECT_EQ(*config.number("n"), 12.0);
  EXPECT_EQ(*config.number("eps"), 1e-5);
  EXPECT_EQ(*config.text("act"), "gelu");
  EXPECT_TRUE(*config.flag_or("tied", false));
  EXPECT_EQ(*config.number("rope.theta"), 10000.0);
  EXPECT_EQ(*config.text("rope.type"), "default");
  EXPECT_FALSE(config.has("none"));
  EXPECT_FALSE(config.has("rope.deep.x"));
}

TEST(ModelConfig, what_is_missing_or_of_another_kind_is_a_typed_error_that_names_the_key) {
  const ModelConfig config = parsed_config(R"({"n": -1, "half": 0.5, "text": "1", "flag": true})");
  EXPECT_EQ(config.integer("absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(config.number("absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(config.text("absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(config.text("n").error().code, ErrorCode::kMalformed);
  for (const char* const key : {"n", "half", "text", "flag"}) {
    const auto refused = config.integer(key);
    ASSERT_FALSE(refused) << key;
    EXPECT_EQ(refused.error().code, ErrorCode::kMalformed);
    EXPECT_NE(refused.error().message.find(key), std::string::npos);
  }
  EXPECT_EQ(config.number("text").error().code, ErrorCode::kMalformed);
}

TEST(ModelConfig, a_count_is_at_least_one_and_a_wrong_one_is_not_replaced) {
  const ModelConfig config =
      parsed_config(R"({"n": 3, "zero": 0, "minus": -1, "huge": 3000000000})");
  EXPECT_EQ(*config.count("n"), 3);
  EXPECT_EQ(*config.count_or("absent", 7), 7);
  for (const char* const key : {"zero", "minus", "huge"}) {
    EXPECT_EQ(config.count(key).error().code, ErrorCode::kMalformed) << key;
    EXPECT_EQ(config.count_or(key, 7).error().code, ErrorCode::kMalformed) << key;
  }
}

TEST(ModelConfig, falls_back_where_asked_to) {
  const ModelConfig config = parsed_config(R"({"text": "x", "null": null})");
  for (const char* const key : {"absent", "null"}) {
    EXPECT_EQ(*config.number_or(key, 0.5), 0.5);
    EXPECT_EQ(*config.text_or(key, "y"), "y");
    EXPECT_TRUE(*config.flag_or(key, true));
  }
}

TEST(ModelConfig, what_is_wrong_is_not_replaced) {
  const ModelConfig config = parsed_config(R"({"text": "x", "n": 1, "red": "a\u001b[31m"})");
  EXPECT_EQ(config.number_or("text", 0.5).error().code, ErrorCode::kMalformed);
  EXPECT_EQ(config.flag_or("text", true).error().code, ErrorCode::kMalformed);
  EXPECT_EQ(config.text_or("n", "y").error().code, ErrorCode::kMalformed);
  const auto red = config.text_or("red", "y");
  ASSERT_FALSE(red);
  EXPECT_EQ(red.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(red.error().message.find('\x1b'), std::string::npos);
}

TEST(ModelConfig, end_tokens_are_one_or_several) {
  const ModelConfig config =
      parsed_config(R"({"one": 2, "many": [2, 3], "none": [], "null": null, "minus": -1})");
  EXPECT_EQ(*config.tokens("one"), std::vector<int64_t>{2});
  EXPECT_EQ(*config.tokens("many"), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(*config.tokens("minus"), std::vector<int64_t>{-1});
  for (const char* const key : {"none", "null", "absent"}) {
    EXPECT_TRUE(config.tokens(key)->empty()) << key;
  }
}

TEST(ModelConfig, what_is_no_end_token_is_not_passed_over) {
  const ModelConfig config = parsed_config(
      R"({"mixed": [2, "x"], "text": "2", "part": 2.0, "object": {"id": 2}, "huge": 4294967298,
          "flag": true, "deep": [[2]]})");
  for (const char* const key : {"mixed", "text", "part", "object", "huge", "flag", "deep"}) {
    const auto tokens = config.tokens(key);
    ASSERT_FALSE(tokens) << key;
    EXPECT_EQ(tokens.error().code, ErrorCode::kMalformed) << key;
    EXPECT_NE(tokens.error().message.find(key), std::string::npos);
  }
}

TEST(ModelConfig, an_object_in_the_place_of_a_value_is_wrong) {
  const ModelConfig config = parsed_config(R"({"object": {"inner": 2}, "list": ["x"]})");
  for (const char* const key : {"object", "list"}) {
    EXPECT_EQ(config.count_or(key, 7).error().code, ErrorCode::kMalformed) << key;
    EXPECT_EQ(config.number_or(key, 0.5).error().code, ErrorCode::kMalformed) << key;
    EXPECT_EQ(config.text_or(key, "y").error().code, ErrorCode::kMalformed) << key;
    EXPECT_EQ(config.flag_or(key, true).error().code, ErrorCode::kMalformed) << key;
  }
  EXPECT_EQ(*config.integer("object.inner"), 2);
}

TEST(ModelConfig, a_number_beyond_an_integer_is_no_count) {
  const ModelConfig config = parsed_config(R"({"n": 18446744073709551615})");
  EXPECT_FALSE(config.integer("n"));
}

TEST(ModelConfig, what_is_no_object_is_malformed) {
  const std::string deep(1'000'000, '['), end(1'000'000, ']');
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{"), std::string("{} x"),
        std::string("\xff"), deep, "{\"a\": " + deep + end + "}"}) {
    const auto parsed = ModelConfig::parse(text);
    ASSERT_FALSE(parsed) << text.substr(0, 10);
    EXPECT_EQ(parsed.error().code, ErrorCode::kMalformed);
  }
}

// --- open_model_directory

TEST(OpenModelDirectory, one_file_is_opened_under_the_directory_s_name) {
  const Directory directory;
  directory.write("config.json", R"({"model_type": "bert"})");
  directory.write("model.safetensors", "weights");
  const auto model = open_model_directory(directory.path() + "/");
  ASSERT_TRUE(model);
  EXPECT_EQ(*model->config.text_or("model_type", ""), "bert");
  EXPECT_EQ(model->label, std::filesystem::path(directory.path()).filename());
  ASSERT_EQ(model->files.size(), 1u);
  EXPECT_EQ(content_of(model->files[0]), "weights");
}

TEST(OpenModelDirectory, a_name_that_says_nothing_is_replaced_by_one_that_does) {
  const std::pair<const char*, const char*> table[] = {
      {"minilm/model", "minilm"},
      {"models--org--small--v2/snapshots/0123abcd", "org/small--v2"},
      {"models--small/snapshots/0123abcd", "small"},
      {"model/small", "small"},
  };
  for (const auto& [path, label] : table) {
    const Directory directory;
    std::filesystem::create_directories(directory.path() + "/" + path);
    directory.write(std::string(path) + "/config.json", "{}");
    directory.write(std::string(path) + "/model.safetensors", "weights");
    const auto model = open_model_directory(directory.path() + "/" + path);
    ASSERT_TRUE(model) << path;
    EXPECT_EQ(model->label, label) << path;
  }
}

TEST(OpenModelDirectory, shards_are_opened_once_each_in_the_order_of_their_names) {
  const Directory directory;
  directory.write_index(
      R"({"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}})");
  directory.write("1.safetensors", "one");
  directory.write("2.safetensors", "two");
  const auto model = open_model_directory(directory.path());
  ASSERT_TRUE(model);
  ASSERT_EQ(model->files.size(), 2u);
  EXPECT_EQ(content_of(model->files[0]), "one");
  EXPECT_EQ(content_of(model->files[1]), "two");
}

struct BadIndex {
  const char* what;
  const char* text;
  ErrorCode code;
};

TEST(OpenModelDirectory, a_bad_index_is_a_typed_error) {
  const BadIndex table[] = {
      {"empty", "", ErrorCode::kMalformed},
      {"no JSON", "{", ErrorCode::kMalformed},
      {"an array", "[]", ErrorCode::kMalformed},
      {"no map", "{}", ErrorCode::kMalformed},
      {"a list for a map", R"({"weight_map": []})", ErrorCode::kMalformed},
      {"a number for a name", R"({"weight_map": {"a": 1}})", ErrorCode::kMalformed},
      {"an empty name", R"({"weight_map": {"a": ""}})", ErrorCode::kMalformed},
      {"another directory", R"({"weight_map": {"a": "../b"}})", ErrorCode::kMalformed},
      {"an absolute path", R"({"weight_map": {"a": "/etc/passwd"}})", ErrorCode::kMalformed},
      {"the parent", R"({"weight_map": {"a": ".."}})", ErrorCode::kMalformed},
      {"a NUL in a name", R"({"weight_map": {"a": "x\u0000y"}})", ErrorCode::kMalformed},
      {"an escape code in a name", R"({"weight_map": {"a": "x\u001b[31m"}})",
       ErrorCode::kMalformed},
      {"no shards", R"({"weight_map": {}})", ErrorCode::kLimitExceeded},
      {"a shard that is not there", R"({"weight_map": {"a": "x.safetensors"}})",
       ErrorCode::kNotFound},
  };
  for (const BadIndex& bad : table) {
    const Directory directory;
    directory.write_index(bad.text);
    const auto model = open_model_directory(directory.path());
    ASSERT_FALSE(model) << bad.what;
    EXPECT_EQ(model.error().code, bad.code) << bad.what << ": " << model.error().message;
  }
}

TEST(OpenModelDirectory, a_shards_name_is_no_longer_than_a_files_and_its_error_neither) {
  const Directory directory;
  directory.write_index(R"({"weight_map": {"a": ")" + std::string(5'000'000, 'x') + "\"}}");
  const auto model = open_model_directory(directory.path());
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kMalformed);
  EXPECT_LT(model.error().message.size(), 1000u);
}

TEST(OpenModelDirectory, a_configuration_that_is_none_is_named_with_its_path) {
  const Directory directory;
  directory.write("config.json", "[]");
  const auto model = open_model_directory(directory.path());
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kMalformed);
  EXPECT_NE(model.error().message.find(directory.path() + "/config.json is not"),
            std::string::npos);
}

// Nobody writes to them: an open that waits for a writer never comes back.
TEST(OpenModelDirectory, a_fifo_in_the_place_of_a_file_is_refused) {
  for (const char* const name : {"config.json", "model.safetensors"}) {
    const Directory directory;
    if (name != std::string("config.json")) directory.write("config.json", "{}");
    ASSERT_EQ(::mkfifo((directory.path() + "/" + name).c_str(), 0600), 0);
    const auto model = open_model_directory(directory.path());
    ASSERT_FALSE(model) << name;
    EXPECT_EQ(model.error().code, ErrorCode::kInvalidArgument) << name;
    EXPECT_NE(model.error().message.find(name), std::string::npos);
  }
}

TEST(OpenModelDirectory, more_shards_than_a_model_may_have_are_refused) {
  std::string map;
  for (int i = 0; i < 257; ++i) {
    const std::string number = std::to_string(i);
    map += (i == 0 ? "\"" : ",\"") + number + "\":\"" + number + "\"";
  }
  const Directory directory;
  directory.write_index("{\"weight_map\": {" + map + "}}");
  EXPECT_EQ(open_model_directory(directory.path()).error().code, ErrorCode::kLimitExceeded);
}

TEST(OpenModelDirectory, without_safetensors_it_says_how_to_convert) {
  const Directory directory;
  directory.write("config.json", "{}");
  directory.write("pytorch_model.bin", "x");
  const auto model = open_model_directory(directory.path());
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kNotFound);
  EXPECT_NE(model.error().message.find("save_pretrained"), std::string::npos);
}

TEST(OpenModelDirectory, no_directory_and_no_configuration_are_not_found) {
  EXPECT_EQ(open_model_directory("/nonexistent").error().code, ErrorCode::kNotFound);
  const Directory directory;
  directory.write("model.safetensors", "x");
  EXPECT_EQ(open_model_directory(directory.path()).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace djinn::client
