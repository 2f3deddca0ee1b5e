// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/directory.h"

#include <limits.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "ipc/limits.h"
#include "kernel/base/file.h"
#include "kernel/base/text.h"
#include "libdjinn-client/models/json_text.h"
#include "libdjinn-client/place.h"

namespace djinn::client {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kJsonBytesMax = 64u << 20;  // an index of 256 shards and 200,000 tensors

// Tells whether the name is that of a file in the directory itself: no path, and nothing that a
// system call would cut short or a terminal would obey.
bool is_file_name(const std::string& name) {
  return !name.empty() && name.size() <= NAME_MAX && name != "." && name != ".." &&
         std::ranges::find(name, '/') == name.end() && !has_control_characters(name);
}

// Gives the files of a shard index. A name that leads out of the directory is refused.
Result<std::set<std::string>> shards_of(const std::string& index_text, const std::string& path) {
  const Json index = parse_json(index_text);
  const Error malformed{ErrorCode::kMalformed,
                        path +
                            " is not an index of safetensors shards: its weight_map gives each "
                            "tensor the name of a file beside it. Save or download the model "
                            "again."};
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return malformed;
  }
  std::set<std::string> shards;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) return malformed;
    const std::string name = file.get<std::string>();
    if (!is_file_name(name)) return malformed;
    shards.insert(name);
  }
  return shards;
}

Error no_config(const std::filesystem::path& directory) {
  std::error_code ignored;
  const bool is_empty = std::filesystem::is_empty(directory, ignored);
  const std::string what = is_empty ? directory.string() + " is an empty directory."
                                    : "There is no config.json in " + directory.string() + ".";
  return {ErrorCode::kNotFound,
          what +
              " A model is a directory with config.json and its weights, as transformers' "
              "save_pretrained() and the Hugging Face Hub make them."};
}

Error no_weights(const std::filesystem::path& directory) {
  return {ErrorCode::kNotFound,
          "There is no model.safetensors and no model.safetensors.index.json in " +
              directory.string() +
              ". Other formats are not read: convert with transformers' save_pretrained()."};
}

Result<std::vector<std::string>> weights_of(const std::filesystem::path& directory) {
  std::error_code ignored;  // what cannot be looked at is not there
  if (std::filesystem::exists(directory / "model.safetensors", ignored)) {
    return std::vector<std::string>{directory / "model.safetensors"};
  }
  const std::filesystem::path index = directory / "model.safetensors.index.json";
  if (!std::filesystem::exists(index, ignored)) return no_weights(directory);
  DJINN_TRY(const std::string text, read_regular_file(index.string(), kJsonBytesMax));
  DJINN_TRY(const auto shards, shards_of(text, index.string()));
  if (shards.empty() || shards.size() > limits::kModelFiles) {
    return Error{ErrorCode::kLimitExceeded, index.string() + " names no shards, or more than 256."};
  }
  std::vector<std::string> paths;
  for (const std::string& shard : shards) paths.push_back(directory / shard);
  return paths;
}

bool are_integers(const Json& value) {
  return value.is_array() &&
         std::ranges::all_of(value, [](const Json& item) { return item.is_number_integer(); });
}

}  // namespace

// --- ModelConfig

Result<ModelConfig> ModelConfig::parse(const std::string& json) {
  const Json root = parse_json(json);
  if (!root.is_object()) return Error{ErrorCode::kMalformed, "config.json is not a JSON object."};
  ModelConfig config;
  const auto add = [&config](const std::string& key, const Json& value) {
    if (value.is_boolean()) {
      config.scalars_[key] = {Scalar::Kind::kFlag, value.get<bool>(), 0, {}, {}};
    } else if (value.is_number_integer()) {
      const auto integer = value.get<int64_t>();
      config.scalars_[key] = {
          Scalar::Kind::kInteger, integer, static_cast<double>(integer), {}, {}};
    } else if (value.is_number()) {
      config.scalars_[key] = {Scalar::Kind::kNumber, 0, value.get<double>(), {}, {}};
    } else if (value.is_string()) {
      config.scalars_[key] = {Scalar::Kind::kText, 0, 0, value.get<std::string>(), {}};
    } else if (are_integers(value)) {
      config.scalars_[key] = {Scalar::Kind::kIntegers, 0, 0, {}, value.get<std::vector<int64_t>>()};
    } else if (!value.is_null()) {
      const auto kind = value.is_array() ? Scalar::Kind::kList : Scalar::Kind::kObject;
      config.scalars_[key] = {kind, 0, 0, {}, {}};
    }
  };
  for (const auto& [key, value] : root.items()) {
    add(key, value);
    config.members_[key] = value.dump();
    if (!value.is_object()) continue;
    for (const auto& [inner, scalar] : value.items()) add(key + "." + inner, scalar);
  }
  return config;
}

Result<int64_t> ModelConfig::integer(const std::string& key) const {
  const auto found = scalars_.find(key);
  if (found == scalars_.end()) {
    return Error{ErrorCode::kNotFound, "config.json has no '" + key + "'."};
  }
  if (found->second.kind != Scalar::Kind::kInteger || found->second.integer < 0) {
    return Error{ErrorCode::kMalformed, "'" + key + "' of config.json is not a count."};
  }
  return found->second.integer;
}

Result<double> ModelConfig::number(const std::string& key) const {
  const auto found = scalars_.find(key);
  if (found == scalars_.end()) {
    return Error{ErrorCode::kNotFound, "config.json has no '" + key + "'."};
  }
  const auto kind = found->second.kind;
  if (kind != Scalar::Kind::kInteger && kind != Scalar::Kind::kNumber) {
    return Error{ErrorCode::kMalformed, "'" + key + "' of config.json is not a number."};
  }
  return found->second.number;
}

Result<std::string> ModelConfig::text(const std::string& key) const {
  const auto found = scalars_.find(key);
  if (found == scalars_.end()) {
    return Error{ErrorCode::kNotFound, "config.json has no '" + key + "'."};
  }
  if (found->second.kind != Scalar::Kind::kText || has_control_characters(found->second.text)) {
    return Error{ErrorCode::kMalformed, "'" + key + "' of config.json is not a name."};
  }
  return found->second.text;
}

Result<int64_t> ModelConfig::count(const std::string& key) const {
  DJINN_TRY(const int64_t value, integer(key));
  if (value >= 1 && value <= kCountMax) return value;
  return Error{ErrorCode::kMalformed, "'" + key + "' of config.json is " + std::to_string(value) +
                                          ", and must be from 1 to " + std::to_string(kCountMax) +
                                          "."};
}

Result<int64_t> ModelConfig::count_or(const std::string& key, int64_t fallback) const {
  return scalars_.contains(key) ? count(key) : fallback;
}

Result<double> ModelConfig::number_or(const std::string& key, double fallback) const {
  return scalars_.contains(key) ? number(key) : fallback;
}
Result<std::string> ModelConfig::text_or(const std::string& key,
                                         const std::string& fallback) const {
  return scalars_.contains(key) ? text(key) : fallback;
}
Result<bool> ModelConfig::flag_or(const std::string& key, bool fallback) const {
  const auto found = scalars_.find(key);
  if (found == scalars_.end()) return fallback;
  if (found->second.kind == Scalar::Kind::kFlag) return found->second.integer != 0;
  return Error{ErrorCode::kMalformed, "'" + key + "' of config.json is neither true nor false."};
}
bool ModelConfig::has(const std::string& key) const {
  const auto found = scalars_.find(key);
  return found != scalars_.end() && found->second.kind != Scalar::Kind::kObject;
}

bool ModelConfig::has_members(const std::string& key) const {
  const auto found = members_.find(key);
  return found != members_.end() && found->second.front() == '{' && found->second != "{}";
}

Result<std::vector<int64_t>> ModelConfig::tokens(const std::string& key) const {
  const auto found = scalars_.find(key);
  if (found == scalars_.end()) return std::vector<int64_t>();
  const auto& [kind, one, number, text, list] = found->second;
  const bool is_one = kind == Scalar::Kind::kInteger;
  const std::vector<int64_t> ids = is_one ? std::vector{one} : list;
  const bool fit = std::ranges::all_of(ids, [](int64_t id) { return std::in_range<int32_t>(id); });
  if (fit && (is_one || kind == Scalar::Kind::kIntegers)) return ids;
  return Error{ErrorCode::kMalformed,
               "'" + key + "' of config.json is neither a token nor a list of them."};
}

Result<ModelDirectory> open_model_directory(const std::string& path) {
  const std::filesystem::path directory(path);
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    return Error{ErrorCode::kNotFound,
                 "'" + path + "' is not a directory. Name one of a Hugging Face model."};
  }
  ModelDirectory model;
  model.label = label_of(place_of(std::span(&path, 1)));
  const std::string config = (directory / "config.json").string();
  if (!std::filesystem::exists(config, ignored) && !ignored) return no_config(directory);
  DJINN_TRY(const std::string text, read_regular_file(config, kJsonBytesMax));
  auto parsed = ModelConfig::parse(text);
  if (!parsed) {
    return Error{parsed.error().code,
                 config + " is not a JSON object. Download or save the model again."};
  }
  model.config = *std::move(parsed);
  DJINN_TRY(model.paths, weights_of(directory));
  for (const std::string& weights : model.paths) {
    DJINN_TRY(Fd file, open_regular_file(weights));
    model.files.push_back(std::move(file));
  }
  return model;
}

}  // namespace djinn::client
