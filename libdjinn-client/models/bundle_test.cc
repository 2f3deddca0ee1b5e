// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/bundle.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace djinn::client {
namespace {

using Json = nlohmann::json;

const char* const kText = R"({
  "format": "djinn-bundle", "version": 1, "label": "small", "files": ["w.safetensors"],
  "config": "{}",
  "as_stored": false,
  "weights": [["a", "float32", [4, 2], 0, [[0, "b", [[0, 1, 4]], true]]]],
  "geometry": {"layers": 2, "kv_heads": 1, "head_dim": 4, "dtype": "bfloat16"},
  "vocabulary": 9, "positions": 64, "begin_token": -1, "end_tokens": [2, 3],
  "constants": ["00ff10"],
  "programs": [
    {"phase": "decode", "from": 15, "inputs": {}, "text": ["srg 1 \"late\""]},
    {"phase": "prefill", "from": 2, "inputs": {}, "text": ["srg 1 \"p\""]},
    {"phase": "decode", "from": 0, "inputs": {"x": 0},
     "text": ["srg 1 \"d\"", "input %0 \"x\" : uint8[3]", "output %0"]}]
})";

class Home {
 public:
  Home() {
    char name[] = "/tmp/djinn-bundle-test-XXXXXX";
    path_ = ::mkdtemp(name);
    write("w.safetensors", "weights");
  }
  ~Home() { std::filesystem::remove_all(path_); }
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;

  [[nodiscard]] Result<Bundle> read(const std::string& text) const {
    write("djinn.json", text);
    return read_bundle(path_);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    const Fd file(::open((path_ + "/" + name).c_str(), flags, 0600));
    EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

 private:
  std::string path_;
};

// All values inside of it, by where they are.
void places_of(const Json& json, const Json::json_pointer& at,
               std::vector<Json::json_pointer>& out) {
  out.push_back(at);
  if (!json.is_structured()) return;
  for (const auto& item : json.items()) {
    if (json.is_object()) places_of(item.value(), at / item.key(), out);
    if (json.is_array()) places_of(item.value(), at / std::stoul(item.key()), out);
  }
}

// And is no reason to take the directory for another model's.
TEST(Bundle, a_link_that_leads_nowhere_is_a_bundle_that_cannot_be_read) {
  const Home home;
  std::filesystem::create_symlink("nowhere", home.path() + "/djinn.json");
  EXPECT_TRUE(is_bundle(home.path()));
  EXPECT_FALSE(read_bundle(home.path()));
}

TEST(Bundle, what_export_writes_is_read) {
  const Home home;
  EXPECT_FALSE(is_bundle(home.path()));
  const auto bundle = home.read(kText);
  ASSERT_TRUE(bundle) << bundle.error().message;
  EXPECT_TRUE(is_bundle(home.path()));
  EXPECT_EQ(bundle->label, "small");
  EXPECT_EQ(bundle->paths, std::vector<std::string>{home.path() + "/w.safetensors"});
  const srg::Destination weight{"a", DType::kFloat32, {4, 2}, 0, {{0, "b", {{0, 1, 4}}, true}}};
  ASSERT_NE(bundle->plan(), nullptr);
  ASSERT_EQ(bundle->plan()->destinations.size(), 1u);
  EXPECT_EQ(bundle->plan()->destinations[0], weight);
  EXPECT_EQ(bundle->geometry.dtype, DType::kBFloat16);
  EXPECT_EQ(bundle->begin_token, -1);
  EXPECT_EQ(bundle->end_tokens, (std::vector<int64_t>{2, 3}));
  const std::vector constant{std::byte{0}, std::byte{255}, std::byte{16}};
  ASSERT_EQ(bundle->constants.size(), 1u);
  EXPECT_EQ(bundle->constants[0], constant);
  ASSERT_EQ(bundle->programs.size(), 3u);
  EXPECT_EQ(bundle->programs[0].from, 0u) << "in the order of from";
  ASSERT_EQ(bundle->programs[0].inputs.size(), 1u);
  EXPECT_EQ(bundle->programs[0].inputs[0], (std::pair<srg::StorageIndex, size_t>{0, 0}));
  EXPECT_EQ(bundle->programs[1].phase, BundlePhase::kPrefill);
}

TEST(Bundle, a_value_of_another_kind_or_a_missing_one_is_refused_and_told) {
  const Home home;
  std::vector<Json::json_pointer> places;
  places_of(Json::parse(kText), Json::json_pointer(), places);
  ASSERT_GT(places.size(), 50u);
  // What may be empty, and say nothing of a program.
  const Json odd[] = {
      nullptr, -7, 1.5, UINT64_MAX, true, "odd", Json::array({Json::array()}), Json{{"odd", -7}}};
  size_t refused = 0;
  for (const Json::json_pointer& place : places) {
    for (const Json& value : odd) {
      Json changed = Json::parse(kText);
      if (changed[place].type() == value.type() && value != Json(UINT64_MAX)) continue;
      changed[place] = value;
      const auto bundle = home.read(changed.dump());
      if (bundle) continue;
      ++refused;
      EXPECT_NE(bundle.error().message.find(home.path()), std::string::npos) << place.to_string();
    }
  }
  EXPECT_GT(refused, places.size() * std::size(odd) * 3 / 4);
}

TEST(Bundle, a_missing_field_is_refused_by_its_name) {
  const Home home;
  const Json whole = Json::parse(kText);
  for (const auto& field : whole.items()) {
    Json less = whole;
    less.erase(field.key());
    const auto bundle = home.read(less.dump());
    EXPECT_FALSE(bundle) << field.key();
  }
}

TEST(Bundle, another_version_says_what_to_do) {
  const Home home;
  Json other = Json::parse(kText);
  other["version"] = 2;
  other["programs"] = "of another form";
  const auto bundle = home.read(other.dump());
  ASSERT_FALSE(bundle);
  EXPECT_EQ(bundle.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(bundle.error().message.find("Export the model again"), std::string::npos);
  other["version"] = uint64_t{1} << 40;
  EXPECT_NE(home.read(other.dump()).error().message.find(std::to_string(uint64_t{1} << 40)),
            std::string::npos);
  other["version"] = "two";
  EXPECT_EQ(home.read(other.dump()).error().code, ErrorCode::kMalformed);
}

TEST(Bundle, what_is_wrong_with_a_program_is_one_sentence_of_the_whole) {
  const Home home;
  Json other = Json::parse(kText);
  other["programs"][0]["text"] = Json::array();
  const std::string message = home.read(other.dump()).error().message;
  EXPECT_NE(message.find("a program has no text of one: line 1:1"), std::string::npos) << message;
  EXPECT_EQ(message.find(".."), std::string::npos) << message;
}

TEST(Bundle, weights_that_are_gone_are_named_with_who_says_that_they_were_there) {
  const Home home;
  std::filesystem::remove(home.path() + "/w.safetensors");
  const auto bundle = home.read(kText);
  ASSERT_FALSE(bundle);
  EXPECT_EQ(bundle.error().code, ErrorCode::kNotFound);
  EXPECT_NE(bundle.error().message.find("w.safetensors"), std::string::npos);
  EXPECT_NE(bundle.error().message.find("djinn.json says"), std::string::npos);
}

TEST(Bundle, another_configuration_is_told_and_a_missing_one_is_not) {
  const Home home;
  EXPECT_TRUE(home.read(kText));
  home.write("config.json", "{}");
  EXPECT_TRUE(home.read(kText));
  home.write("config.json", "{\"rope_theta\": 1}");
  const auto bundle = home.read(kText);
  ASSERT_FALSE(bundle);
  EXPECT_EQ(bundle.error().code, ErrorCode::kFileChanged);
  EXPECT_NE(bundle.error().message.find("config.json has changed"), std::string::npos);
}

TEST(Bundle, tensors_that_have_changed_are_told) {
  const Home home;
  const auto bundle = home.read(kText);
  ASSERT_TRUE(bundle);
  srg::ModelManifest manifest;
  manifest.tensors.push_back({"a", DType::kFloat32, {4, 2}});
  EXPECT_TRUE(check_tensors(*bundle, manifest));
  for (const srg::TensorEntry& other : {srg::TensorEntry{"a", DType::kBFloat16, {4, 2}},
                                        srg::TensorEntry{"a", DType::kFloat32, {2}},
                                        srg::TensorEntry{"b", DType::kFloat32, {4, 2}}}) {
    manifest.tensors = {other};
    const Status checked = check_tensors(*bundle, manifest);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kFileChanged);
  }
}

}  // namespace
}  // namespace djinn::client
