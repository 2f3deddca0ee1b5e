// SPDX-License-Identifier: Apache-2.0

// Settings: one object of a tokenizer.json, read key by key. What is not followed to the letter
// gives other tokens, so a key that nobody asks for is an error, as one of the wrong kind is.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "kernel/base/result.h"

namespace djinn::text {

using Json = nlohmann::json;

// kUnsupported: the file asks for what is not known here. what: as "the pre-tokenizer X".
Error not_known(const std::string& what);
// kMalformed.
Error malformed(const std::string& what);
// kLimitExceeded for a text of the file with more bytes. what: as "an added token".
Status check_bytes(std::string_view text, size_t bytes_max, const std::string& what);

// A text of the file, UTF-8, for an error: not long, and with '?' for what may steer a terminal.
[[nodiscard]] std::string shown(std::string_view text);

// Prefixes, suffixes and what is put into a text: some of it goes to each character or word.
// Published ones have up to a dozen.
inline constexpr size_t kAffixBytesMax = 256;

class Settings {
 public:
  // part: as "pre-tokenizer". Null, and what is no object, has no type.
  Settings(const Json& json, std::string part) : json_(json), part_(std::move(part)) {}

  // What the key "type" says; empty where nothing does.
  [[nodiscard]] std::string type();
  // "the pre-tokenizer X", for errors.
  [[nodiscard]] std::string name();

  // The first error is kept, for finish(); then and where the key is missing, or null, the value is
  // the fallback.
  bool flag(const char* key, bool fallback);
  uint64_t count(const char* key, uint64_t fallback);
  std::optional<std::string> text(const char* key);
  std::string text_or(const char* key, std::string fallback) {
    return text(key).value_or(std::move(fallback));
  }
  // A text of at most kAffixBytesMax.
  std::string affix_or(const char* key, std::string fallback);
  // Null where there is none.
  const Json& any(const char* key);
  // The key must not have a value.
  void refuse(const char* key);
  // The key is read by others, or has no effect on tokens.
  void pass_over(const char* key) { seen_.insert(key); }

  // The first error; where there is none, that of a key that nobody asked for.
  Status finish();

 private:
  void wrong_kind(const char* key, const char* kind);

  const Json& json_;
  std::string part_;
  std::set<std::string, std::less<>> seen_;
  std::optional<Error> error_;
};

}  // namespace djinn::text
