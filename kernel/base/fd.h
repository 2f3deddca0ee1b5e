// SPDX-License-Identifier: Apache-2.0

// Fd: owns one file descriptor and closes it. Move-only; -1 means none.
// SharedFd: one of several holders of one; null means none.
#pragma once

#include <memory>
#include <utility>

#include "kernel/base/result.h"

namespace djinn {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept;

  // A second descriptor of the same open file description, close-on-exec.
  Result<Fd> duplicate() const;

 private:
  int fd_ = -1;
};

using SharedFd = std::shared_ptr<const Fd>;

}  // namespace djinn
