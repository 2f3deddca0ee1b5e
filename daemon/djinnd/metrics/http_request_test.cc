// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/metrics/http_request.h"

#include <gtest/gtest.h>

#include "kernel/base/random.h"

namespace djinn::daemon {
namespace {

using State = HttpRequest::State;

const std::string kScrape =
    "GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:10466\r\nAccept: text/plain;q=0.5\r\n\r\n";

TEST(HttpRequestTest, a_whole_request_gives_its_path_without_the_query) {
  const HttpRequest request = read_request(kScrape);
  EXPECT_EQ(request.state, State::kComplete);
  EXPECT_EQ(request.path, "/metrics");
  EXPECT_FALSE(request.head_only);
  EXPECT_EQ(read_request("HEAD /healthz HTTP/1.0\r\n\r\n").path, "/healthz");
  EXPECT_TRUE(read_request("HEAD /healthz HTTP/1.0\r\n\r\n").head_only);
}

TEST(HttpRequestTest, every_beginning_of_a_request_wants_more) {
  for (size_t length = 0; length < kScrape.size(); ++length) {
    EXPECT_EQ(read_request(kScrape.substr(0, length)).state, State::kIncomplete) << length;
  }
  EXPECT_EQ(read_request(kScrape + "a body that nobody reads").state, State::kComplete);
}

TEST(HttpRequestTest, a_request_of_4_kib_is_read_and_a_longer_one_is_not) {
  const std::string begin = "GET / HTTP/1.1\r\nX: ";
  const std::string end = "\r\n\r\n";
  const std::string filling(HttpRequest::kBytesMax - begin.size() - end.size(), 'x');
  EXPECT_EQ(read_request(begin + filling + end).state, State::kComplete);
  EXPECT_EQ(read_request(begin + filling + "x" + end).state, State::kTooLarge);
  EXPECT_EQ(read_request(std::string(HttpRequest::kBytesMax, 'x')).state, State::kTooLarge);
  EXPECT_EQ(read_request(std::string(HttpRequest::kBytesMax - 1, 'x')).state, State::kIncomplete);
}

TEST(HttpRequestTest, what_is_not_http_is_malformed_and_other_methods_are_unsupported) {
  for (const char* const first :
       {"", " ", "GET", "GET /", "GET  HTTP/1.1", "GET / HTTP/2", "GET / HTTP/1.1 ", "/ HTTP/1.1",
        "GET metrics HTTP/1.1", "GET /a b HTTP/1.1", "GET /\x01 HTTP/1.1", "GET /\xff HTTP/1.1",
        " GET / HTTP/1.1"}) {
    EXPECT_EQ(read_request(std::string(first) + "\r\nHost: x\r\n\r\n").state, State::kMalformed)
        << first;
  }
  for (const char* const field : {"Host", ": x", "Ho st: x", "Host: \x01", "a\nb: c"}) {
    const std::string request = std::string("GET / HTTP/1.1\r\n") + field + "\r\n\r\n";
    EXPECT_EQ(read_request(request).state, State::kMalformed) << field;
  }
  EXPECT_EQ(read_request("POST /metrics HTTP/1.1\r\n\r\n").state, State::kUnsupported);
  EXPECT_EQ(read_request("get /metrics HTTP/1.1\r\n\r\n").state, State::kUnsupported);
}

// A complete request has a path, an incomplete one may still become one, and more bytes never
// change a verdict.
TEST(HttpRequestTest, any_bytes_have_a_verdict_that_more_bytes_do_not_change) {
  Random random(11);
  constexpr char kBytes[] = "GET /metricsHEAD HTTP/1.10\r\n\r\n: \t\x00\x7f\xff?";
  const std::string_view alphabet(kBytes, sizeof kBytes - 1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = random.below(2) == 0 ? kScrape : "";
    const uint64_t changes = random.below(40);
    for (uint64_t n = 0; n < changes; ++n) {
      const size_t at = static_cast<size_t>(random.below(bytes.size() + 1));
      const char c = alphabet[static_cast<size_t>(random.below(alphabet.size()))];
      random.below(2) == 0 || at == bytes.size() ? bytes.insert(at, 1, c)
                                                 : bytes.replace(at, 1, 1, c);
    }
    const HttpRequest request = read_request(bytes);
    if (request.state == State::kComplete) {
      ASSERT_TRUE(request.path.starts_with('/')) << bytes;
      ASSERT_EQ(request.path.find('?'), std::string::npos) << bytes;
    }
    if (request.state != State::kIncomplete) {
      const HttpRequest longer = read_request(bytes + "GET / HTTP/1.1\r\n\r\n");
      ASSERT_EQ(longer.state, request.state) << bytes;
      ASSERT_EQ(longer.path, request.path) << bytes;
    }
  }
}

TEST(HttpRequestTest, an_answer_tells_its_length_and_a_head_has_no_body) {
  const std::string whole = make_answer("200 OK", "text/plain", "ok\n", false);
  EXPECT_TRUE(whole.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_NE(whole.find("Content-Length: 3\r\n"), std::string::npos);
  EXPECT_TRUE(whole.ends_with("\r\n\r\nok\n"));
  const std::string head = make_answer("200 OK", "text/plain", "ok\n", true);
  EXPECT_EQ(head + "ok\n", whole);
}

}  // namespace
}  // namespace djinn::daemon
