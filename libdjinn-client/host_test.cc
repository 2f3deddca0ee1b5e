// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/host.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace djinn::client {
namespace {

ErrorCode refusal_of(const std::string& text) {
  const auto host = parse_host(text);
  return host ? ErrorCode::kOk : host.error().code;
}

TEST(Host, what_a_user_writes_is_what_it_says_of_itself) {
  ::setenv("DJINN_ALLOW_EXEC", "1", 1);
  for (const char* text :
       {"unix:/run/djinn/djinnd.sock", "ssh://box", "ssh://ann@box.example", "ssh://ann@box:2222",
        "ssh://[fe80::1%eth0]:22", "djinn://box", "djinn://box:10468", "exec:true"}) {
    const auto host = parse_host(text);
    ASSERT_TRUE(host) << text << ": " << host.error().message;
    EXPECT_EQ(host->text(), text);
    EXPECT_EQ(parse_host(host->text()).value(), *host);
  }
  EXPECT_EQ(parse_host("/a/b")->text(), "unix:/a/b");
  EXPECT_EQ(parse_host("ssh://box/")->text(), "ssh://box");
}

TEST(Host, ssh_gets_the_name_without_brackets_and_the_port_apart) {
  const Host host = parse_host("ssh://ann@[::1]:2222").value();
  EXPECT_EQ(host.destination, "ann@::1");
  EXPECT_EQ(host.port, 2222);
  EXPECT_TRUE(host.is_far());
  EXPECT_FALSE(parse_host("unix:/a")->is_far());
}

TEST(Host, what_ssh_or_a_shell_would_read_as_more_than_a_name_is_refused) {
  for (const char* text : {"ssh://",
                           "ssh://-oProxyCommand=x",
                           "ssh://a b",
                           "ssh://a;b",
                           "ssh://@box",
                           "ssh://-x@box",
                           "ssh://box:",
                           "ssh://box:0",
                           "ssh://box:70000",
                           "ssh://box:2x",
                           "ssh://[::1",
                           "ssh://$(x)",
                           "ssh://box/path",
                           "ssh://fe80::1",
                           "djinn://",
                           "djinn://ann@box",
                           "djinn://../box",
                           "unix:",
                           "box",
                           "http://box",
                           "tcp:1"}) {
    EXPECT_EQ(refusal_of(text), ErrorCode::kInvalidArgument) << text;
  }
}

TEST(Host, a_command_runs_only_where_that_was_allowed) {
  ::unsetenv("DJINN_ALLOW_EXEC");
  EXPECT_EQ(refusal_of("exec:true"), ErrorCode::kPermissionDenied);
  ::setenv("DJINN_ALLOW_EXEC", "0", 1);
  EXPECT_EQ(refusal_of("exec:true"), ErrorCode::kPermissionDenied);
  ::setenv("DJINN_ALLOW_EXEC", "1", 1);
  EXPECT_EQ(refusal_of("exec:true"), ErrorCode::kOk);
  EXPECT_EQ(refusal_of("exec:"), ErrorCode::kInvalidArgument);
}

TEST(Host, an_error_tells_that_the_environment_named_the_host) {
  ::setenv("DJINN_HOST", "box", 1);
  const auto host = resolve_host("");
  ASSERT_FALSE(host);
  EXPECT_NE(host.error().message.find("DJINN_HOST"), std::string::npos);
  EXPECT_EQ(resolve_host("/a")->path, "/a") << "what was given goes before it";
  ::unsetenv("DJINN_HOST");
}

}  // namespace
}  // namespace djinn::client
