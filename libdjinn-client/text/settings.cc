// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/text/settings.h"

#include <utility>

#include "kernel/base/text.h"

namespace djinn::text {
Error not_known(const std::string& what) {
  return {
      ErrorCode::kUnsupported,
      "tokenizer.json asks for " + what +
          ", which is not known here. Another library has to make tokens of text for this model."};
}

Error malformed(const std::string& what) {
  return {ErrorCode::kMalformed,
          "tokenizer.json is broken: " + what + ". Get the model's files anew."};
}

Status check_bytes(std::string_view text, size_t bytes_max, const std::string& what) {
  if (text.size() <= bytes_max) return {};
  return Error{ErrorCode::kLimitExceeded,
               "tokenizer.json has " + what + " of " + std::to_string(text.size()) + " bytes, '" +
                   shown(text) + "', and may have " + std::to_string(bytes_max) +
                   ". Another library has to make tokens of text for this model."};
}

std::string shown(std::string_view text) {
  constexpr size_t kBytesMax = 60;
  return showable(whole_characters(text, kBytesMax)) + (text.size() > kBytesMax ? "..." : "");
}

std::string Settings::type() {
  return text_or("type", "");
}

std::string Settings::name() {
  return "the " + part_ + " '" + shown(type()) + "'";
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

std::string Settings::affix_or(const char* key, std::string fallback) {
  std::string value = text_or(key, std::move(fallback));
  const Status fits = check_bytes(value, kAffixBytesMax, "'" + std::string(key) + "'");
  if (!fits.ok() && !error_) error_ = fits.error();
  return value;
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
    if (!seen_.contains(key)) return not_known("'" + shown(key) + "' of its " + part_);
  }
  return {};
}

}  // namespace djinn::text
