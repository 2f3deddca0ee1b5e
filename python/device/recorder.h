// SPDX-License-Identifier: Apache-2.0

// Recorder: an operator that was called, as an entry of the log, or of this thread's capture
// (capture.h).
//
//   entry   made first: its results exist from then on as storages without bytes
//   append  what it writes may be a weight, and what it reads may be weights of several models:
//           both are copied to refs by entries before it
//
// All is called under the device's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "python/device/log.h"
#include "python/device/session_life.h"

namespace djinn::device {

class Recorder {
 public:
  // Whether this thread computes gradients.
  static bool is_amid_backward();

  struct Stats {
    uint64_t recorded = 0;  // operators
    uint64_t forks = 0;     // weights and sources that were copied to be written
  };

  // Both outlive this.
  Recorder(Log& log, const SessionLife& session) : log_(log), session_(session) {}

  // The entry of a call on these tensors. Throws if the value of one of them is lost.
  Entry make_entry(std::shared_ptr<const Recipe> recipe, const std::vector<at::Tensor>& tensors);
  // Appends an entry of the operator, whose arguments are on the stack. False: to a capture.
  bool append(const c10::OperatorHandle& op, const Stack& stack, Entry& entry);
  // One run knows the weights of one model: the entry reads copies of those of others.
  void keep_to_one_model(Entry& entry);
  // An operator was run by itself, without the log.
  void count_run() { ++stats_.recorded; }
  [[nodiscard]] const Stats& stats() const { return stats_; }

 private:
  StoragePtr append_copy(const Operand& source);
  void fork_written(Entry& entry);

  Log& log_;
  const SessionLife& session_;
  Stats stats_;
};

}  // namespace djinn::device
