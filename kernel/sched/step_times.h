// SPDX-License-Identifier: Apache-2.0

// StepTimes: how long a step will take, from how long those of its kind took.
//
// A kind is a number that whoever asks makes of what tells steps apart: operation, program, first
// or later token. Of kinds that share a place the last one is known; a kind that is not known is
// taken for the mean of all steps. Takes no memory but its own. One lane's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace djinn::sched {

class StepTimes {
 public:
  [[nodiscard]] uint64_t predict_ns(uint64_t kind) const;
  // Several of the kind were measured; the first one may have been cold.
  [[nodiscard]] bool is_sure(uint64_t kind) const;
  void note(uint64_t kind, uint64_t measured_ns);

 private:
  struct Mean {
    uint64_t kind = 0;
    uint64_t count = 0;
    uint64_t ns = 0;

    void note(uint64_t measured_ns);
  };
  static constexpr size_t kPlaces = 1024;
  std::array<Mean, kPlaces> places_;
  Mean all_;
};

}  // namespace djinn::sched
