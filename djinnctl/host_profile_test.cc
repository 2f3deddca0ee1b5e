// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/host_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "kernel/base/file.h"

namespace djinn::ctl {
namespace {

using testing::HasSubstr;

std::string block(const std::string& label) {
  return "-----BEGIN " + label + "-----\nAAAA\n-----END " + label + "-----\n";
}

std::string head() {
  return "address: gpu-box:10467\ngate: spiffe://example.org/djinn-gate/gpu-box\n\n";
}

std::string profile() {
  return head() + block("CERTIFICATE") + block("PRIVATE KEY") + block("CERTIFICATE");
}

std::string fault_of(const std::string& text) {
  const auto parsed = parse_host_profile(text, "alice.pem");
  if (parsed) return "";
  EXPECT_EQ(parsed.error().code, ErrorCode::kMalformed);
  return parsed.error().message;
}

TEST(HostProfiles, one_says_where_the_gate_is_and_what_it_is_called) {
  const auto parsed = parse_host_profile(profile(), "alice.pem");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->address, "gpu-box:10467");
  EXPECT_EQ(parsed->gate, "spiffe://example.org/djinn-gate/gpu-box");
  EXPECT_EQ(name_from(*parsed), "gpu-box");
  EXPECT_EQ(name_from({"[::1]:1", ""}), "");
}

TEST(HostProfiles, one_that_was_cut_before_its_last_line_is_refused) {
  const std::string text = profile();
  const size_t last_line = text.rfind("-----END") + std::string("-----END CERTIFICATE-----").size();
  for (size_t length = 0; length < last_line; ++length) {
    EXPECT_NE(fault_of(text.substr(0, length)), "") << length;
  }
}

TEST(HostProfiles, what_lacks_a_part_is_refused_and_the_part_is_named) {
  const std::string certificates = block("CERTIFICATE") + block("CERTIFICATE");
  const std::string key = block("PRIVATE KEY");
  EXPECT_THAT(fault_of(head() + key + block("CERTIFICATE")), HasSubstr("lacks a certificate"));
  EXPECT_THAT(fault_of(head() + certificates), HasSubstr("no key"));
  EXPECT_THAT(fault_of(head() + certificates + key + key), HasSubstr("several keys"));
  EXPECT_THAT(fault_of(head() + certificates + block("ENCRYPTED PRIVATE KEY")),
              HasSubstr("password"));
  EXPECT_EQ(fault_of(head() + certificates + block("EC PRIVATE KEY")), "");
  EXPECT_THAT(fault_of(certificates + key), HasSubstr("'address:' and 'gate:'"));
}

TEST(HostProfiles, addresses_and_gates_that_are_none_are_refused) {
  const auto with = [](const std::string& address, const std::string& gate) {
    return fault_of("address: " + address + "\ngate: " + gate + "\n\n" + block("CERTIFICATE") +
                    block("PRIVATE KEY") + block("CERTIFICATE"));
  };
  const std::string gate = "spiffe://example.org/djinn-gate/box";
  EXPECT_EQ(with("[::1]:1", gate), "");
  for (const char* address : {"", "box", "box:", ":1", "box:0", "box:65536", "box:1 ", "a/b:1"}) {
    EXPECT_THAT(with(address, gate), HasSubstr("no profile")) << address;
  }
  for (const std::string& wrong : {std::string(), std::string("https://example.org/djinn-gate/box"),
                                   std::string("spiffe://example.org/alice"),
                                   gate + std::string(256, 'x'), gate + "\x1b[2J"}) {
    EXPECT_THAT(with("box:1", wrong), HasSubstr("no profile")) << wrong;
  }
}

TEST(HostProfiles, a_name_is_one_word_of_a_path) {
  for (const char* name : {"box", "gpu.example.org", "a_b-9", "10.0.0.1", "_"}) {
    EXPECT_TRUE(check_host_name(name).ok()) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("-a"),
        std::string("a b"), std::string("a:1"), std::string("a\n"), std::string(129, 'a')}) {
    EXPECT_FALSE(check_host_name(name).ok()) << name;
  }
}

class Installed : public testing::Test {
 protected:
  Installed() {
    place_ = testing::TempDir() + "djinn-hosts.XXXXXX";
    EXPECT_NE(::mkdtemp(place_.data()), nullptr);
  }
  ~Installed() override { std::filesystem::remove_all(place_); }
  Status install(const std::string& gate, const std::string& text) {
    return install_host_profile(folder(), "box", text, {"box:1", gate});
  }
  std::string folder() const { return place_ + "/djinn/hosts"; }
  mode_t mode_of(const std::string& path) const {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_mode & 07777;
  }

  std::string place_;
};

TEST_F(Installed, is_its_owners_alone_and_nothing_lies_beside_it) {
  const auto parsed = parse_host_profile(profile(), "alice.pem");
  ASSERT_TRUE(install(parsed->gate, profile()).ok());
  EXPECT_EQ(mode_of(folder()), 0700U);
  EXPECT_EQ(mode_of(folder() + "/box.pem"), 0600U);
  const auto read = read_secret_file(folder() + "/box.pem", kProfileBytesMax);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, profile());
  const std::filesystem::directory_iterator files(folder());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(Installed, is_replaced_by_one_of_the_same_gate_and_by_no_others) {
  const auto parsed = parse_host_profile(profile(), "alice.pem");
  ASSERT_TRUE(install(parsed->gate, profile()).ok());
  ASSERT_TRUE(install(parsed->gate, profile() + "\n").ok());
  const Status other = install("spiffe://example.org/djinn-gate/other", profile());
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(*read_secret_file(folder() + "/box.pem", kProfileBytesMax), profile() + "\n");
}

TEST_F(Installed, a_file_that_others_may_read_is_refused) {
  const auto parsed = parse_host_profile(profile(), "alice.pem");
  ASSERT_TRUE(install(parsed->gate, profile()).ok());
  for (const mode_t mode : {0640, 0604, 0620}) {
    ASSERT_EQ(::chmod((folder() + "/box.pem").c_str(), mode), 0);
    const auto read = read_secret_file(folder() + "/box.pem", kProfileBytesMax);
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::kPermissionDenied);
  }
}

}  // namespace
}  // namespace djinn::ctl
