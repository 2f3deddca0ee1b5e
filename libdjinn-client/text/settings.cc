// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/settings.h"

#include <utility>

namespace djinn::text {

Error not_known(const std::string& what) {
  return {
      ErrorCode::kUnsupported,
      "tokenizer.json asks for " + what +
          ", which is not known here. Another library has to make tokens of text for this model."};
}

Error malformed(const std::string& what) {
  return {ErrorCode::kMalformed, "tokenizer.json is broken: " + what + "."};
}

std::string Settings::type() {
  return text_or("type", "");
}

std::string Settings::name() {
  return "the " + part_ + " '" + type() + "'";
}

const Json& Settings::any(const char* key) {
  static const Json none;
  seen_.insert(key);
  if (!json_.is_object()) return none;
  const auto found = json_.find(key);
  return found == json_.end() ? none : *found;
}

void Settings::wrong_kind(const char* key, const char* kind) {
  if (!error_) error_ = malformed("'" + std::string(key) + "' of its " + part_ + " is no " + kind);
}

bool Settings::flag(const char* key, bool fallback) {
  const Json& value = any(key);
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_null()) wrong_kind(key, "boolean");
  return fallback;
}

uint64_t Settings::count(const char* key, uint64_t fallback) {
  const Json& value = any(key);
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_null()) wrong_kind(key, "count");
  return fallback;
}

std::optional<std::string> Settings::text(const char* key) {
  const Json& value = any(key);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_null()) wrong_kind(key, "text");
  return std::nullopt;
}

void Settings::refuse(const char* key) {
  if (!any(key).is_null() && !error_) {
    error_ = not_known("'" + std::string(key) + "' of its " + part_);
  }
}

Status Settings::finish() {
  if (error_) return *error_;
  if (!json_.is_object()) return malformed("its " + part_ + " is no object");
  for (const auto& [key, value] : json_.items()) {
    if (!seen_.contains(key)) return not_known("'" + key.substr(0, 60) + "' of its " + part_);
  }
  return {};
}

}  // namespace djinn::text
