// SPDX-License-Identifier: Apache-2.0

// Rates: how long a run will take that nobody has seen, from what it computes and how long others
// took. A run's time is taken for a sum of three, each with its rate:
//
//   operators   that are called, views among them
//   bytes       that operators move which wait for memory
//   flops       of operators which wait for arithmetic: more than 8 for each byte
//
// The rates begin as those of a host of 2020 with two cores, and are fitted to what was measured:
// least squares of relative errors, of which the older count less and less. What runs for the first
// time takes longer, since its plan is recorded: by how much is learned, too, apart for what waits
// for arithmetic most, whose plan is recorded of a run of more rows.
//
// Takes no memory but its own; reads no clock. One lane's.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernel/sched/cost.h"
#include "kernel/srg/graph.h"

namespace djinn::sched {

// What a run computes, for its time.
struct Work {
  uint64_t operators = 0;
  uint64_t bytes = 0;
  uint64_t flops = 0;
  friend bool operator==(const Work&, const Work&) = default;
};

// Of a run at these values of the graph's symbols, with weights in these forms. Precondition:
// verify() passed graph.
[[nodiscard]] Work work_at(const srg::Graph& graph, std::span<const int64_t> symbols,
                           const srg::WeightForms& forms = {});

// Nothing is predicted to take longer: 30 years.
inline constexpr double kPredictedNsMax = 1e18;

class Rates {
 public:
  Rates();
  [[nodiscard]] uint64_t predict_ns(const Work& work) const;
  // Of a run that was computed before. measured_ns: more than 0, else nothing is learned.
  void note(const Work& work, uint64_t measured_ns);

  // How many times as long as the second runs of their kind the first ones took.
  [[nodiscard]] double first_factor(const Work& work) const {
    return firsts_[waits_for_arithmetic(work)].factor;
  }
  void note_first(const Work& work, uint64_t first_ns, uint64_t second_ns);

 private:
  using Triple = std::array<double, 3>;
  struct Firsts {
    double factor = 1;  // a mean
    uint32_t count = 0;
  };
  static Triple features(const Work& work);
  // More than for memory.
  [[nodiscard]] bool waits_for_arithmetic(const Work& work) const;
  void fit();

  Triple ns_;  // of an operator, of a byte, of an operation
  // invariant: ns_ is the least non-negative solution of squares_ * ns_ = products_
  std::array<Triple, 3> squares_{};
  Triple products_{};
  std::array<Firsts, 2> firsts_;  // by waits_for_arithmetic()
};

}  // namespace djinn::sched
