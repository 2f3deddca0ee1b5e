// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/authority/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ipc/principal.h"

namespace djinn::authority {
namespace {

constexpr std::string_view kDomain = "example.org";

TEST(Names, a_client_may_be_called_by_any_segments_of_the_alphabet) {
  for (const char* name : {"a", "alice", "team/alice", "A.b-c_9/x", "...", "djinn-gate", "-"}) {
    EXPECT_TRUE(check_client_name(kDomain, name).ok()) << name;
  }
}

TEST(Names, what_could_be_read_in_two_ways_is_no_name) {
  const std::string with_zero("al\0ice", 6);
  for (const std::string& name : {std::string(),
                                  std::string("/"),
                                  std::string("/alice"),
                                  std::string("alice/"),
                                  std::string("a//b"),
                                  std::string("."),
                                  std::string(".."),
                                  std::string("a/./b"),
                                  std::string("a/../b"),
                                  std::string("al ice"),
                                  std::string("alice\n"),
                                  std::string("a,b"),
                                  std::string("a%2fb"),
                                  std::string("a:b"),
                                  std::string("spiffe://example.org/alice"),
                                  std::string("\xc3\xa4"),
                                  std::string("a\\b"),
                                  std::string("a?b"),
                                  std::string("a#b"),
                                  with_zero}) {
    const Status checked = check_client_name(kDomain, name);
    ASSERT_FALSE(checked.ok()) << name;
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Names, no_client_is_called_as_a_gate_is) {
  EXPECT_FALSE(check_client_name(kDomain, "djinn-gate/host").ok());
  EXPECT_TRUE(check_client_name(kDomain, "djinn-gates/host").ok());
}

TEST(Names, a_principal_has_at_most_256_bytes) {
  const size_t room = ipc::kPrincipalBytesMax - principal_of(kDomain, "").size();
  EXPECT_TRUE(check_client_name(kDomain, std::string(room, 'a')).ok());
  EXPECT_FALSE(check_client_name(kDomain, std::string(room + 1, 'a')).ok());
  EXPECT_FALSE(gate_name(kDomain, std::string(room, 'a')).ok());
}

TEST(Names, a_trust_domain_is_lower_case) {
  for (const char* domain : {"a", "example.org", "gpu-1", "a_b"}) {
    EXPECT_TRUE(check_trust_domain(domain).ok()) << domain;
  }
  for (const std::string& domain :
       {std::string(), std::string("Example.org"), std::string("a/b"), std::string("a:1"),
        std::string("a b"), std::string(201, 'a')}) {
    EXPECT_FALSE(check_trust_domain(domain).ok()) << domain;
  }
}

TEST(Names, an_address_is_read_as_it_is_written) {
  const std::pair<const char*, const char*> cases[] = {
      {"gpu-box", "gpu-box:10467"},   {"gpu.example.org:1", "gpu.example.org:1"},
      {"10.0.0.1", "10.0.0.1:10467"}, {"[2001:db8::1]:443", "[2001:db8::1]:443"},
      {"[::1]", "[::1]:10467"},       {"host:65535", "host:65535"},
      {"::1", "[::1]:10467"}};
  for (const auto& [text, whole] : cases) {
    const auto address = parse_address(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->text(), whole);
    const auto again = parse_address(whole);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->text(), whole);
  }
  EXPECT_TRUE(parse_address("10.0.0.1")->is_number);
  EXPECT_TRUE(parse_address("[::1]")->is_number);
  EXPECT_FALSE(parse_address("gpu-box")->is_number);
}

TEST(Names, what_is_no_address_is_refused) {
  for (const char* text :
       {"",        ":1",   "host:", "host:0", "host:65536", "host:1x",     "host:-1",
        "host:+1", "::1:", "a:b:1", "[::1",   "[::1]1",     "[host]:1",    "[]:1",
        "a..b",    "-a",   "a b",   "a/b",    "host\n",     "djinn://host"}) {
    EXPECT_FALSE(parse_address(text).ok()) << text;
  }
}

}  // namespace
}  // namespace djinn::authority
