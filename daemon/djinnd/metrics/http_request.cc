// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/metrics/http_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

using State = HttpRequest::State;

constexpr std::string_view kEndOfLine = "\r\n";
constexpr std::string_view kEndOfHead = "\r\n\r\n";

bool is_visible(char c) {
  return c > ' ' && c <= '~';
}

// Tells whether the line is a field: a name, a colon, and text in which a tab is the only control
// character.
bool is_field(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == 0 || colon == std::string_view::npos) return false;
  const auto is_text = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == '\t' || (byte >= ' ' && byte != 0x7f);
  };
  return std::ranges::all_of(line.substr(0, colon), is_visible) &&
         std::ranges::all_of(line.substr(colon), is_text);
}

// Reads a line such as "GET /path?query HTTP/1.1".
HttpRequest read_first_line(std::string_view line) {
  DJINN_ASSERT(line.find(kEndOfLine) == line.npos);
  HttpRequest request{State::kMalformed};
  const size_t first = line.find(' ');
  const size_t second = line.rfind(' ');
  if (first == 0 || first == std::string_view::npos || second == first) return request;
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return request;
  if (!std::ranges::all_of(method, is_visible) || !std::ranges::all_of(target, is_visible)) {
    return request;
  }
  request.head_only = method == "HEAD";
  if (method != "GET" && !request.head_only) {
    request.state = State::kUnsupported;
  } else if (target.starts_with('/')) {
    request.path = target.substr(0, target.find('?'));
    request.state = State::kComplete;
  }
  return request;
}

}  // namespace

HttpRequest read_request(std::string_view bytes) {
  const std::string_view looked_at = bytes.substr(0, HttpRequest::kBytesMax);
  const size_t end = looked_at.find(kEndOfHead);
  if (end == std::string_view::npos) {
    const bool full = bytes.size() >= HttpRequest::kBytesMax;
    return {full ? State::kTooLarge : State::kIncomplete};
  }
  std::string_view head = looked_at.substr(0, end);
  const size_t first_end = std::min(head.find(kEndOfLine), head.size());
  HttpRequest request = read_first_line(head.substr(0, first_end));
  head.remove_prefix(first_end);
  while (!head.empty()) {
    DJINN_ASSERT(head.starts_with(kEndOfLine));
    head.remove_prefix(kEndOfLine.size());
    const size_t line_end = std::min(head.find(kEndOfLine), head.size());
    if (!is_field(head.substr(0, line_end))) return {State::kMalformed};
    head.remove_prefix(line_end);
  }
  return request;
}

std::string make_answer(std::string_view status, std::string_view content_type,
                        std::string_view body, bool head_only) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "Connection: close\r\n\r\n{}",
      status, content_type, body.size(), head_only ? "" : body);
}

}  // namespace djinn::daemon
