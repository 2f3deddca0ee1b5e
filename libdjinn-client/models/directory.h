// SPDX-License-Identifier: Apache-2.0

// Directory: a Hugging Face model directory as data: its configuration and its safetensors files.
//
// Nothing but config.json and the shard index is parsed here; weights are only opened, and read by
// the loader, through descriptors of our own (so that its O_DIRECT changes nobody else's).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::client {

// Scalars of a config.json, by key; "rope_parameters.rope_theta" for nested ones.
class ModelConfig {
 public:
  // So that the product of two counts overflows nowhere.
  static constexpr int64_t kCountMax = (int64_t{1} << 31) - 1;

  // Errors: kMalformed for text that is not a JSON object.
  static Result<ModelConfig> parse(const std::string& json);

  // Errors: kNotFound naming the key; kMalformed when it has another type or is negative.
  [[nodiscard]] Result<int64_t> integer(const std::string& key) const;
  // How many there are of something: from 1 to kCountMax. Errors: as integer(), naming the limits.
  [[nodiscard]] Result<int64_t> count(const std::string& key) const;
  [[nodiscard]] Result<double> number(const std::string& key) const;
  // A text that holds control characters is malformed, too.
  [[nodiscard]] Result<std::string> text(const std::string& key) const;
  // fallback where there is no such key, or null; never for one that is wrong.
  [[nodiscard]] Result<int64_t> count_or(const std::string& key, int64_t fallback) const;
  [[nodiscard]] Result<double> number_or(const std::string& key, double fallback) const;
  [[nodiscard]] Result<std::string> text_or(const std::string& key,
                                            const std::string& fallback) const;
  [[nodiscard]] Result<bool> flag_or(const std::string& key, bool fallback) const;
  // Whether the key is there. False for an object, whose values have keys of their own.
  [[nodiscard]] bool has(const std::string& key) const;
  // The token ids of key, be it one or a list of them (eos_token_id is both); none where there is
  // no such key, or null. Errors: kMalformed for anything else, and beyond 32 bits.
  [[nodiscard]] Result<std::vector<int64_t>> tokens(const std::string& key) const;
  // Whether the value is an object that holds something.
  [[nodiscard]] bool has_members(const std::string& key) const;
  // The values of the object itself as JSON, by key.
  [[nodiscard]] const std::map<std::string, std::string>& members() const { return members_; }

 private:
  struct Scalar {
    enum class Kind { kInteger, kNumber, kText, kFlag, kIntegers, kList, kObject } kind;
    int64_t integer = 0;
    double number = 0;
    std::string text;
    std::vector<int64_t> integers;
  };
  std::map<std::string, Scalar> scalars_;
  std::map<std::string, std::string> members_;
};

struct ModelDirectory {
  std::string label;  // place.h
  ModelConfig config;
  std::vector<Fd> files;           // in the shard index's order of names
  std::vector<std::string> paths;  // of the files
};

// Errors: kNotFound (no such directory, no safetensors in it, with what to do about .bin files),
// kMalformed, kLimitExceeded for more than limits::kModelFiles shards.
Result<ModelDirectory> open_model_directory(const std::string& path);

}  // namespace djinn::client
