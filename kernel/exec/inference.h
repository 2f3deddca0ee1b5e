// SPDX-License-Identifier: Apache-2.0

// Shape inference: the graph is run on the meta device at a few symbol values; what comes out is
// fitted with affine expressions.
//
//   Sample   one meta run at one point: dtype and geometry of every value, and peak bytes
//
// A graph without symbols has one point, and there claims stand in for meta runs (claims.h).
// Points: a base, for each symbol one that differs from the base only in it, and some that check
// the fit. Sequence roles keep past + tokens within the capacity at every point.
#pragma once

#include <optional>

#include "kernel/base/result.h"
#include "kernel/exec/footprint.h"
#include "kernel/exec/program.h"
#include "kernel/srg/affine.h"

namespace djinn::exec {

struct ValueShape {
  bool known = false;  // false: nothing could tell
  at::ScalarType type = at::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  srg::StorageIndex root = srg::kLocalStorage;  // the graph storage that it is a view of
};

// A piece of memory (footprint.h) as a meta run made it.
struct SamplePiece {
  srg::ValueId value = 0;  // the first on it
  uint64_t bytes = 0;      // of its storage
};

struct Sample {
  std::vector<ValueShape> shapes;   // one for each value
  std::vector<SamplePiece> pieces;  // of a meta run, in the order of births
  std::vector<PieceEvent> events;   // likewise
  std::vector<uint32_t> at_steps;   // likewise: the events until each step's results were made
  uint64_t peak_bytes = 0;          // of local storages alive together
  uint64_t passing_peak_bytes = 0;  // likewise, without outputs that are plain (Layout::leaves)
};

// invariant: samples.size() == points.size(), and affine is over these points.
struct Inference {
  std::vector<std::vector<int64_t>> points;
  std::optional<srg::AffineFit> affine;
  std::vector<Sample> samples;
};

// past + tokens at most what the sequence can hold: lowers past where both are at their top.
// Symbols without sequence roles stay as they are.
void respect_capacity(const srg::Graph& graph, std::vector<int64_t>& symbols);

// Runs program's steps on meta at all points, checks the graph's claims, and marks steps whose
// claims only a run can check. Errors: kShapeMismatch and what operators say, naming the node;
// kLimitExceeded, and what limits.go_on says.
Result<Inference> infer_shapes(AdmittedGraph& program, const AdmissionLimits& limits);

// Calls a step whose stack is filled, on meta: by its shape rule, by its meta kernel, or, where
// both are missing, by taking the graph's claims, which each run then checks. Of the last node a
// result that nothing tells stays undefined in the frame. Throws what operators throw.
Status run_on_meta(const srg::Graph& graph, Step& step, Frame& frame,
                   std::vector<c10::IValue>& stack, bool is_last);

// check_claim, and of the strides as well.
Status check_on_meta(const srg::Value& value, const at::Tensor& tensor,
                     std::span<const int64_t> symbols);

// A value's sizes as expressions; nothing if they are not affine, or unknown.
[[nodiscard]] std::optional<std::vector<srg::Expr>> fit_sizes(const Inference& inference,
                                                              srg::ValueId id);

// The same for the whole geometry.
[[nodiscard]] std::optional<ViewExprs> fit_view(const Inference& inference, srg::ValueId id);

}  // namespace djinn::exec
