// SPDX-License-Identifier: Apache-2.0

// Pieces: runs of steps that compute the same, at the same places, from one run of a program to the
// next, so that a device can keep what they launch and launch it again at once.
//
//   moving symbol   one that another step of the same work has another value of: the length of a
//                   sequence, its capacity, and whatever has no role
//   piece           as many steps as possible, one behind the other, that no moving symbol reaches
//
// What a piece does depends on nothing but its operators' constants, the other symbols, and the
// addresses and shapes of what it reads: whoever repeats one compares these.
#pragma once

#include <span>
#include <vector>

#include "kernel/exec/program.h"

namespace djinn::exec {

struct Pieces {
  // By step: where the piece ends that begins with it; 0: none does.
  std::vector<size_t> ends;
  std::vector<srg::SymbolIndex> fixed_symbols;  // those that are not moving
};

// Left out are, besides what moving symbols reach: attention, whose kernels take other memory while
// they are captured; what appends to a sequence group, which is looked at in each run; and what
// makes an output of the graph, for its memory is the caller's.
[[nodiscard]] Pieces pieces_of(const AdmittedGraph& program);

// The step, which the piece that begins with `begin` has, is in none any more.
void take_out(Pieces& pieces, size_t begin, size_t step);

// The values that the steps use and do not make, each once, ascending.
[[nodiscard]] std::vector<srg::ValueId> values_into(std::span<const Step> steps);

// Takes the steps of a program that are a piece, where it can do so at once (kernel/exec/cuda).
class PieceRunner {
 public:
  virtual ~PieceRunner() = default;
  // Before a step. Does none, or all of the piece that begins there: `at` is then the step behind
  // it. Errors are those of run_steps(), of step `at`. Throws what operators throw.
  virtual Status advance(const AdmittedGraph& program, std::span<const c10::Storage> storages,
                         Frame& frame, size_t& at) = 0;
};

}  // namespace djinn::exec
