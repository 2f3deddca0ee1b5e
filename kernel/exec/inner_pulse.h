// SPDX-License-Identifier: Apache-2.0

// InnerPulse: the pulse of the run that this thread computes, for operators of ours that compute
// one large product after the other: each may take as long as the lane gives one session at once.
#pragma once

#include <functional>
#include <string_view>
#include <utility>

namespace djinn::exec {

class InnerPulse {
 public:
  using Pulse = std::function<bool(std::string_view)>;

  // Of the run, while this lives; an empty one is none.
  explicit InnerPulse(const Pulse& pulse) : former_(std::exchange(current_, &pulse)) {}
  ~InnerPulse() { current_ = former_; }
  InnerPulse(const InnerPulse&) = delete;
  InnerPulse& operator=(const InnerPulse&) = delete;

  // Between two parts of the operator: the run may be set aside. If it is given up, that is said
  // again before its next operator.
  static void beat(std::string_view op) {
    if (current_ != nullptr && *current_) (*current_)(op);
  }

 private:
  static inline thread_local const Pulse* current_ = nullptr;

  const Pulse* former_;
};

}  // namespace djinn::exec
