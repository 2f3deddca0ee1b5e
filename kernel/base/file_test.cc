// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

namespace djinn {
namespace {

class OpenRegularFile : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(directory_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  [[nodiscard]] std::string path() const { return directory_ + "/file"; }

 private:
  std::string directory_ = "/tmp/djinn-regular-file-test-XXXXXX";
};

// Nobody writes to it: an open that waits for a writer never comes back.
TEST_F(OpenRegularFile, a_fifo_is_refused_and_nobody_waits_for_its_writer) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  const auto file = open_regular_file(path());
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(file.error().message.find(path()), std::string::npos);
}

TEST_F(OpenRegularFile, a_directory_and_a_device_are_refused) {
  ASSERT_EQ(::mkdir(path().c_str(), 0700), 0);
  for (const std::string& one : {path(), std::string("/dev/zero")}) {
    const auto file = open_regular_file(one);
    ASSERT_FALSE(file) << one;
    EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument) << one;
  }
}

TEST_F(OpenRegularFile, a_socket_is_refused_as_they_are_and_says_what_to_name) {
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path().size(), sizeof address.sun_path);
  path().copy(address.sun_path, sizeof address.sun_path - 1);
  const auto* const there = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(::bind(socket.get(), there, sizeof address), 0);
  const auto file = open_regular_file(path());
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file.error().message, path() + " is not a regular file. Name one that is.");
}

TEST_F(OpenRegularFile, what_is_not_there_is_named) {
  const auto file = open_regular_file(path());
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_NE(file.error().message.find(path()), std::string::npos);
}

// root may read all, and is nobody for a moment.
TEST_F(OpenRegularFile, what_may_not_be_read_says_what_to_do) {
  constexpr uid_t kNobody = 65534;
  const Fd made(::open(path().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0));
  const uid_t user = ::geteuid();
  ASSERT_TRUE(user != 0 || ::seteuid(kNobody) == 0);
  const auto file = open_regular_file(path());
  ASSERT_EQ(::seteuid(user), 0);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kPermissionDenied);
  EXPECT_NE(file.error().message.find(path() + " may not be read by this user. Let"),
            std::string::npos);
}

TEST_F(OpenRegularFile, a_file_is_open_for_reading_and_waits_as_others_do) {
  const Fd written(::open(path().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::write(written.get(), "x", 1), 1);
  const auto file = open_regular_file(path());
  ASSERT_TRUE(file);
  const int flags = ::fcntl(file->get(), F_GETFL);
  EXPECT_EQ(flags & O_ACCMODE, O_RDONLY);
  EXPECT_EQ(flags & O_NONBLOCK, 0);
  char byte = 0;
  EXPECT_EQ(::read(file->get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
}

class ReadFile : public OpenRegularFile {
 protected:
  void write(std::string_view bytes, mode_t mode = 0600) {
    const Fd made(::open(path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
    ASSERT_TRUE(write_to_disk(made, bytes, path()));
    ASSERT_EQ(::fchmod(made.get(), mode), 0);
  }
};

TEST_F(ReadFile, all_bytes_come_up_to_the_limit_and_none_beyond) {
  write("12345");
  EXPECT_EQ(*read_regular_file(path(), 5), "12345");
  const auto more = read_regular_file(path(), 4);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, ErrorCode::kLimitExceeded);
  EXPECT_NE(more.error().message.find(path()), std::string::npos);
}

TEST_F(ReadFile, a_secret_that_others_may_use_is_none) {
  write("key");
  EXPECT_EQ(*read_secret_file(path(), 5), "key");
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    write("key", mode);
    const auto read = read_secret_file(path(), 5);
    ASSERT_FALSE(read) << mode;
    EXPECT_EQ(read.error().code, ErrorCode::kPermissionDenied);
    EXPECT_TRUE(read_regular_file(path(), 5)) << mode;
  }
}

TEST_F(ReadFile, what_cannot_be_written_names_the_file) {
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const Status written = write_to_disk(full, "x", "there");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(written.error().message.find("there"), std::string::npos);
}

}  // namespace
}  // namespace djinn
