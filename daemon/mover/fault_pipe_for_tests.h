// SPDX-License-Identifier: Apache-2.0

// FaultPipe: where the fake NVML hears of the faults that it tells (tests/fake_cuda/nvml).
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "kernel/base/fd.h"

namespace djinn::mover {

class FaultPipe {
 public:
  FaultPipe() {
    char directory[] = "/tmp/djinn-xids-XXXXXX";
    directory_ = ::mkdtemp(directory);
    EXPECT_EQ(::mkfifo(path().c_str(), 0600), 0);
    pipe_ = Fd(::open(path().c_str(), O_RDWR | O_CLOEXEC));
  }
  ~FaultPipe() { std::filesystem::remove_all(directory_); }
  FaultPipe(const FaultPipe&) = delete;
  FaultPipe& operator=(const FaultPipe&) = delete;

  [[nodiscard]] std::string path() const { return directory_ + "/xids"; }
  // For DJINN_FAKE_NVML.
  [[nodiscard]] std::string option() const { return "xids=" + path(); }
  // lines: numbers, each with its end of line.
  void tell(std::string_view lines) {
    EXPECT_EQ(::write(pipe_.get(), lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
  }
  // Somebody has heard of all of them.
  [[nodiscard]] bool all_heard() const {
    int bytes = -1;
    return ::ioctl(pipe_.get(), FIONREAD, &bytes) == 0 && bytes == 0;
  }

 private:
  std::string directory_;
  Fd pipe_;
};

}  // namespace djinn::mover
