// SPDX-License-Identifier: Apache-2.0

// Breaker: operators whose shapes are not inferred any more. One that struck kStrikesMax times in a
// row is on trial: it runs in djinnd at once, with the metadata that it really gives. If djinnd can
// do what inference could not, the operator is tripped, for the life of the process; else the
// arguments were wrong, and the error of the inference stands. One that writes an argument is not
// tried, because a failure would lose that argument: it trips by being slow alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "python/device/torch_headers.h"

namespace djinn::device {

class Breaker {
 public:
  [[nodiscard]] bool is_tripped(const c10::OperatorHandle& op) const;
  // An inference of op gave a result. Too slow is a strike, too.
  void note_success(const c10::OperatorHandle& op, std::chrono::nanoseconds took);
  // An inference of op raised. True: op is on trial, and the count begins anew.
  bool note_failure(const c10::OperatorHandle& op);
  void trip(const c10::OperatorHandle& op);
  // Qualified names, sorted.
  [[nodiscard]] std::vector<std::string> tripped() const;

 private:
  struct Record {
    uint32_t strikes = 0;
    bool is_tripped = false;
  };
  mutable std::mutex mutex_;
  std::unordered_map<c10::OperatorHandle, Record> records_;
};

// The process's; never destroyed, because operators may be called after everything else.
Breaker& breaker();

}  // namespace djinn::device
