// SPDX-License-Identifier: Apache-2.0

// Turn: queries or keys turned by cosines and sines that the graph has computed: a rotary position
// embedding (Su et al., 2021) whose result goes where the graph wants it.
#pragma once

#include <stdint.h>

#include "kernel/exec/cuda/kernels/element.h"

namespace djinn::cuda {

inline constexpr int32_t kTurnThreads = 128;

// Where the vectors of [rows, heads, tokens, width] begin: elements between neighbours of a
// dimension; 0 where all of it share one.
struct TurnSteps {
  int64_t row = 0;
  int64_t head = 0;
  int64_t token = 0;
};

// y = x * cos + turned * sin, where turned is x's second half, negated, before its first; or,
// interleaved, each second element, negated, before its neighbour. All have one element type, and
// the elements of a vector are dense. y is not x.
struct Turn {
  const void* x = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* y = nullptr;
  TurnSteps x_steps;
  TurnSteps cos_steps;
  TurnSteps sin_steps;
  TurnSteps y_steps;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t tokens = 0;
  int32_t width = 0;  // even
  bool interleaved = false;
};

}  // namespace djinn::cuda
