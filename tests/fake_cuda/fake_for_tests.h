// SPDX-License-Identifier: Apache-2.0

// For tests on the fake driver: a child process with a fake of its own, for it reads
// DJINN_FAKE_CUDA once and a sticky code stays as long as its process; and what carries a
// descriptor from one child to another.
#pragma once

#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "kernel/base/fd.h"
#include "kernel/pal/cuda/driver_api.h"

namespace djinn::fake_cuda {

// An option: what is not waited for has not happened.
inline constexpr const char* kSlow = "delay_us=200000";

// Runs work in a child process, on a fake that was told these options; its failures are this
// test's. The exit code.
inline int run_on_fake(const std::string& options,
                       const std::function<void(const pal::cuda::DriverApi&)>& work) {
  ::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("DJINN_FAKE_CUDA", options.c_str(), 1);
    auto api = pal::cuda::load_driver();
    EXPECT_TRUE(api) << api.error().message;
    if (api.ok()) work(*api);
    ::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Carries one descriptor from one child process to the next.
class Carrier {
 public:
  Carrier() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    in_ = Fd(ends[0]);
    out_ = Fd(ends[1]);
  }

  void send(const Fd& fd) {
    Message message;
    const int number = fd.get();
    ::memcpy(CMSG_DATA(message.first()), &number, sizeof number);
    EXPECT_EQ(::sendmsg(in_.get(), &message.head, 0), 1);
  }

  Fd receive() {
    Message message;
    EXPECT_EQ(::recvmsg(out_.get(), &message.head, 0), 1);
    int number = -1;
    ::memcpy(&number, CMSG_DATA(message.first()), sizeof number);
    return Fd(number);
  }

 private:
  struct Message {
    Message() {
      head.msg_iov = &data;
      head.msg_iovlen = 1;
      head.msg_control = control;
      head.msg_controllen = sizeof control;
      first()->cmsg_level = SOL_SOCKET;
      first()->cmsg_type = SCM_RIGHTS;
      first()->cmsg_len = CMSG_LEN(sizeof(int));
    }
    cmsghdr* first() { return CMSG_FIRSTHDR(&head); }

    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    char byte = 0;
    iovec data{&byte, 1};
    msghdr head{};
  };

  Fd in_, out_;
};

}  // namespace djinn::fake_cuda
