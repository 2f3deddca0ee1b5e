// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/name.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "kernel/base/text.h"

namespace djinn::store {
namespace {

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

Error refused(std::string_view text, const std::string& why) {
  constexpr size_t kShownBytesMax = 80;
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is no name for a model: {}. Names are like gpt2, gpt2:v1, or ~USER/gpt2 "
                  "for one of a user's own.",
                  showable(text.substr(0, kShownBytesMax)), why)};
}

std::string escape_of(std::string_view text) {
  std::string escape;
  for (const char c : text) {
    const bool is_itself =
        is_letter_or_digit(c) || c == '_' || c == '-' || (c == '.' && !escape.empty());
    if (is_itself) {
      escape += c;
    } else {
      escape += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escape;
}

// Nothing: it is no escape. Others than escape_of() gives are for the caller to tell.
std::optional<std::string> text_of_escape(std::string_view escape) {
  std::string text;
  for (size_t at = 0; at < escape.size(); ++at) {
    if (escape[at] != '%') {
      text += escape[at];
      continue;
    }
    const std::string_view digits = escape.substr(at + 1, 2);
    unsigned value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2) return std::nullopt;
    text += static_cast<char>(value);
    at += 2;
  }
  return text;
}

}  // namespace

bool is_plain(std::string_view text) noexcept {
  return !text.empty() && is_letter_or_digit(text.front()) && std::ranges::all_of(text, [](char c) {
    return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-';
  });
}

bool is_shown_by_ascii(std::string_view text) noexcept {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

Result<Name> Name::parse(std::string_view text) {
  std::string_view rest = text;
  std::string_view user;
  const bool is_of_user = text.starts_with('~');
  if (is_of_user) {
    const size_t slash = text.rfind('/');
    if (slash == std::string_view::npos) return refused(text, "no / follows the user");
    user = text.substr(1, slash - 1);
    rest = text.substr(slash + 1);
    if (!is_shown_by_ascii(user)) return refused(text, "its user is not of ASCII's characters");
  }
  const size_t colon = rest.find(':');
  const std::string_view name = rest.substr(0, colon);
  const std::string_view tag =
      colon == std::string_view::npos ? kTagOfNone : rest.substr(colon + 1);
  if (!is_plain(name) || !is_plain(tag)) {
    return refused(text,
                   "it has letters, digits and . _ - of ASCII, and begins with one of the "
                   "first two; a tag behind a colon likewise");
  }
  if (name.size() > kNamePartBytesMax || tag.size() > kNamePartBytesMax) {
    return refused(text,
                   fmt::format("it, or its tag, has more than {} characters", kNamePartBytesMax));
  }
  Name made(is_of_user ? fmt::format("~{}/{}:{}", user, name, tag)
                       : fmt::format("{}:{}", name, tag));
  if (made.file_name().size() > kNameFileBytesMax) return refused(text, "it is too long");
  return made;
}

Result<Name> Name::of_file(std::string_view file_name) {
  const auto text = text_of_escape(file_name);
  if (text) {
    auto name = parse(*text);
    if (name && name->file_name() == file_name) return name;
  }
  return Error{
      ErrorCode::kMalformed,
      fmt::format("The store of models has a record '{}', which is no escaped name. Nobody "
                  "but djinnd writes there: remove it, or put back what it was.",
                  showable(file_name))};
}

std::string_view Name::user() const {
  if (!text_.starts_with('~')) return {};
  return std::string_view(text_).substr(1, text_.rfind('/') - 1);
}

std::string Name::file_name() const {
  return escape_of(text_);
}

}  // namespace djinn::store
