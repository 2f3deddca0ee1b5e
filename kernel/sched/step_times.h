// SPDX-License-Identifier: Apache-2.0

// StepTimes: how long a step will take, from how long those of its kind took.
//
// A kind is a number that whoever asks makes of what tells steps apart: operation, program, first
// or later token. Of kinds that share a place the last one is known. A kind that never ran is
// predicted from what it computes (rates.h), or, where nobody says that, taken for the mean of all
// steps. Takes no memory but its own. One lane's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernel/sched/rates.h"

namespace djinn::sched {

// Whose kernels compute a step: their rates differ.
enum class Kernels : uint8_t { kExact = 0, kFast = 1 };

class StepTimes {
 public:
  [[nodiscard]] uint64_t predict_ns(uint64_t kind) const;
  // Some of the kind ran, or it is expected.
  [[nodiscard]] bool knows(uint64_t kind) const;
  // Several of the kind were measured; the first one may have been cold.
  [[nodiscard]] bool is_sure(uint64_t kind) const;
  // What steps of a kind compute that is not known yet.
  void expect(uint64_t kind, const Work& work, Kernels kernels);
  void note(uint64_t kind, uint64_t measured_ns);

 private:
  struct Mean {
    uint64_t kind = 0;
    uint64_t count = 0;
    uint64_t ns = 0;

    void note(uint64_t measured_ns);
  };
  struct Place {
    Mean mean;
    uint64_t ran = 0;  // so many of the kind; no more than are asked for
    std::optional<Work> work;
    Kernels kernels = Kernels::kExact;
  };
  static constexpr size_t kPlaces = 1024;
  std::array<Place, kPlaces> places_;
  Mean all_;
  std::array<Rates, 2> rates_;  // by Kernels
};

}  // namespace djinn::sched
