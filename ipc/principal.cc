// SPDX-License-Identifier: Apache-2.0

#include "ipc/principal.h"

#include <algorithm>

namespace djinn::ipc {
namespace {

constexpr std::string_view kScheme = "spiffe://";
constexpr std::string_view kOfGates = "/djinn-gate/";

bool is_lower_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}
bool is_of_domain(char c) {
  return is_lower_or_digit(c) || c == '.' || c == '-' || c == '_';
}
bool is_of_path(char c) {
  return is_of_domain(c) || (c >= 'A' && c <= 'Z');
}

bool is_segment(std::string_view text) {
  return !text.empty() && text != "." && text != ".." && std::ranges::all_of(text, is_of_path);
}

// text: behind the domain's slash.
bool is_path(std::string_view text) {
  for (size_t slash = text.find('/'); slash != std::string_view::npos; slash = text.find('/')) {
    if (!is_segment(text.substr(0, slash))) return false;
    text.remove_prefix(slash + 1);
  }
  return is_segment(text);
}

}  // namespace

Result<Principal> Principal::parse(std::string_view uri) {
  const auto refuse = [](const char* why) { return Error{ErrorCode::kInvalidArgument, why}; };
  if (uri.size() > kPrincipalBytesMax) return refuse("The name is longer than 256 bytes.");
  if (!uri.starts_with(kScheme)) return refuse("The name does not begin with spiffe://.");
  const std::string_view rest = uri.substr(kScheme.size());
  const size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return refuse("The name has no path behind its domain.");
  const std::string_view domain = rest.substr(0, slash);
  if (domain.empty() || !is_lower_or_digit(domain.front()) ||
      !std::ranges::all_of(domain, is_of_domain)) {
    return refuse(
        "The name's domain is not of a-z, 0-9, '.', '-' and '_', with one of the first "
        "two in front.");
  }
  if (!is_path(rest.substr(slash + 1))) {
    return refuse(
        "The name's path has an empty part, '.', '..', or a character that is none of "
        "a-z, A-Z, 0-9, '.', '-' and '_'.");
  }
  return Principal(uri);
}

std::string_view Principal::domain() const {
  const std::string_view rest = std::string_view(text_).substr(kScheme.size());
  return rest.substr(0, rest.find('/'));
}

std::string_view Principal::path() const {
  return std::string_view(text_).substr(kScheme.size() + domain().size());
}

bool Principal::is_gate() const {
  return path().starts_with(kOfGates);
}

}  // namespace djinn::ipc
