// SPDX-License-Identifier: Apache-2.0

// AdmissionBudget: how much of a processor the look at one graph may take. It is counted on the
// thread that looks, so what else the host does takes nothing from it.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "kernel/base/clock.h"
#include "kernel/base/result.h"

namespace djinn::worker {

class AdmissionBudget {
 public:
  // On the thread that looks, as it begins.
  AdmissionBudget(const Clock& clock, uint64_t cpu_ms_max)
      : clock_(clock), cpu_ms_max_(cpu_ms_max), begun_ns_(clock.thread_cpu_ns()) {}

  // Between two nodes: whether to ask used_ns().
  [[nodiscard]] bool is_due() { return nodes_++ % kNodesPerLook == 0; }
  // Errors: kLimitExceeded.
  [[nodiscard]] Result<uint64_t> used_ns() const {
    const uint64_t used_ns = clock_.thread_cpu_ns() - begun_ns_;
    if (used_ns <= cpu_ms_max_ * 1'000'000) return used_ns;
    return Error{
        ErrorCode::kLimitExceeded,
        fmt::format("To look at the graph took more than {} s of a processor, which is the most "
                    "that one may. Give it fewer symbols, or split it.",
                    static_cast<double>(cpu_ms_max_) / 1000)};
  }

 private:
  // A look at the clock is a system call, and most nodes take some 10 us.
  static constexpr uint32_t kNodesPerLook = 8;

  const Clock& clock_;
  uint64_t cpu_ms_max_;
  uint64_t begun_ns_;
  uint32_t nodes_ = 0;
};

}  // namespace djinn::worker
