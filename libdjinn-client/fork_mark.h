// SPDX-License-Identifier: Apache-2.0

// ForkMark: tells the child of a fork that it is one. A session's socket, rings and staging are the
// parent's: two processes that used them would each take the other's answers.
#pragma once

#include "kernel/base/error.h"
#include "kernel/base/result.h"
#include "kernel/pal/memfd.h"

namespace djinn::client {

class ForkMark {
 public:
  // A mark of this process. Errors: kOutOfMemory.
  static Result<ForkMark> make();

  // Whether this process was forked from the one that made the mark. No system call.
  [[nodiscard]] bool is_in_child() const;

 private:
  explicit ForkMark(pal::Mapping page) : page_(std::move(page)) {}

  pal::Mapping page_;  // invariant: its first byte is 1 where it was made; the kernel zeroes a copy
};

// The error of a child that uses the session: kDisconnected.
Error forked();

}  // namespace djinn::client
