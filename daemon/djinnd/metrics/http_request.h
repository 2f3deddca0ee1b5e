// SPDX-License-Identifier: Apache-2.0

// The little of HTTP that metrics need: a request's first line, and an answer with a body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace djinn::daemon {

struct HttpRequest {
  static constexpr size_t kBytesMax = 4096;

  enum class State : uint8_t {
    kIncomplete,  // more may come
    kComplete,
    kTooLarge,    // more than kBytesMax without an end
    kMalformed,   // not HTTP/1
    kUnsupported  // another method than GET and HEAD
  };
  State state = State::kIncomplete;
  bool head_only = false;
  std::string path{};  // without the query; begins with a slash
};

// Reads the beginning of what a client has sent so far. What follows the empty line is not looked
// at. Pure; any bytes.
[[nodiscard]] HttpRequest read_request(std::string_view bytes);

// status: "200 OK". The connection ends after it.
[[nodiscard]] std::string make_answer(std::string_view status, std::string_view content_type,
                                      std::string_view body, bool head_only);

}  // namespace djinn::daemon
