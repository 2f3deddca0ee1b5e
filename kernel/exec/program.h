// SPDX-License-Identifier: Apache-2.0

// Inside of a CpuProgram: what admission makes and the interpreter runs.
//
//   AdmittedGraph  the graph with its steps, its constants, and what is known of a run beforehand
//   Step           a node, or several that are one, ready to call: operator handle, stack template,
//                  what to patch into it
//   Patch          one argument that depends on the run: a tensor, or an expression in the symbols
//   Write          a storage that existed before the run and that a step changes
//   Layout         what the graph claims of one output: its strides, on a storage of its own
//
// invariant: a value's last use moves it or kills it; after the last step only outputs are left.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernel/exec/allow_list.h"
#include "kernel/exec/footprint.h"
#include "kernel/exec/one_thread.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/executor/executor.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/pass_report.h"

namespace djinn::exec {

enum class PatchKind : uint8_t {
  kValue,              // a tensor
  kValueList,          // Tensor[]
  kOptionalValueList,  // Tensor?[]
  kInt,                // an expression as int, SymInt or Scalar
  kDouble,             // an expression where the schema says float
  kIntList,            // int[] or SymInt[]
  kNumberTensor,       // an expression where the schema says Tensor: a wrapped number
  kDevice,             // the program's device, whatever the client said
};

struct Patch {
  uint32_t position = 0;  // in the stack
  PatchKind kind = PatchKind::kValue;
  bool moves = false;  // kValue: the last use
  srg::ValueId value = 0;
  std::vector<std::optional<srg::ValueId>> values;
  std::vector<srg::Expr> exprs;
};

// invariant: sizes and strides are evaluated, unless is_symbolic.
struct Layout {
  uint32_t output = 0;  // which of the step's
  bool is_symbolic = false;
  bool is_plain = false;  // constant, of a known dtype and without gaps: agrees() can tell
  at::ScalarType type = at::ScalarType::Undefined;  // Undefined: any
  at::DimVector sizes;
  at::DimVector strides;
  uint64_t elements = 0;
  uint64_t reached = 0;            // elements of its storage; more than elements if there are gaps
  uint64_t bytes = 0;              // of its storage, if is_plain
  std::optional<uint32_t> leaves;  // is_plain: as this output of the graph
};

struct Step {
  explicit Step(const Operator& resolved) : op(&resolved) {}

  const Operator* op;
  size_t node = 0;                 // of the graph; the first of those that it stands for
  std::vector<c10::IValue> stack;  // one entry for each schema argument
  std::vector<Patch> patches;
  std::vector<srg::ValueId> outputs;
  std::vector<srg::ValueId> dead;     // values that no later step uses
  std::vector<srg::ValueId> written;  // values whose storage the schema says it changes
  std::vector<srg::StorageIndex>
      written_storages;                // for each of them: where that storage comes from
  std::vector<Layout> layouts;         // of outputs that are claimed to have storages of their own
  bool claims_checked_at_run = false;  // no shape rule: outputs are compared with their claims
  Splits splits = Splits::kNever;
};

// The geometry of a view as expressions; for hulls of written ranges.
struct ViewExprs {
  DType dtype = DType::kInvalid;
  std::vector<srg::Expr> sizes;
  std::vector<srg::Expr> strides;  // full, never empty for a view with dimensions
  srg::Expr offset;
};

struct Write {
  srg::StorageIndex storage = 0;
  ViewExprs view;
};

struct AdmittedGraph {
  c10::Device device = c10::kCPU;  // where its weights are, and its runs compute
  srg::Graph graph;
  std::vector<c10::Storage> weights;  // one for each graph storage; empty for other kinds
  std::vector<at::Tensor> constants;  // one for each value; weight views of constant shape only
  std::vector<srg::ValueId> bound;    // values to be bound at each run
  std::vector<Step> steps;
  std::vector<OutputInfo> outputs;
  std::vector<Write> writes;
  std::vector<srg::StorageIndex> appended;  // sequence buffers that djinn::kv_append writes
  bool reaches_capacity = false;            // as Program says
  uint64_t activation_bytes = 0;            // at the points that were inferred, the most
  uint64_t passing_bytes = 0;               // of these, without outputs that are plain
  Footprint footprint;                      // of a graph with symbols
  uint32_t fast_nodes = 0;                  // that a pass has made
  std::vector<srg::PassReport> passes;      // what was tried; none of an exact program
};

class CpuProgram final : public Program {
 public:
  explicit CpuProgram(AdmittedGraph admitted) : admitted_(std::move(admitted)) {}

  [[nodiscard]] const srg::Graph& graph() const override { return admitted_.graph; }
  [[nodiscard]] std::span<const OutputInfo> outputs() const override { return admitted_.outputs; }
  [[nodiscard]] uint64_t activation_bytes_estimate() const override {
    return admitted_.activation_bytes;
  }
  [[nodiscard]] uint64_t activation_bytes_at(std::span<const int64_t> symbols) const override {
    return symbols.empty() ? admitted_.activation_bytes : admitted_.footprint.peak_bytes(symbols);
  }
  Result<std::vector<WrittenRange>> written_ranges(std::span<const int64_t> symbols) const override;
  [[nodiscard]] bool writes_nothing() const override { return admitted_.writes.empty(); }
  [[nodiscard]] bool reaches_capacity() const override { return admitted_.reaches_capacity; }
  [[nodiscard]] uint32_t fast_nodes() const override { return admitted_.fast_nodes; }

  [[nodiscard]] const AdmittedGraph& admitted() const { return admitted_; }

 private:
  AdmittedGraph admitted_;
};

// Whether a device has kernels of our own for internal operators. Where it has none, programs whose
// numerics are fast are as exact ones are.
enum class OwnKernels { kNone, kThere };

// As Executor::admit(), of a program whose weights are on this device. Of a device that is not the
// host only lanes without a plan run one, and what they give is there when its stream is done.
Result<std::unique_ptr<Program>> admit_on(c10::Device device, srg::Graph graph,
                                          const WeightTable& weights, const AdmissionLimits& limits,
                                          OwnKernels kernels = OwnKernels::kNone);

class PieceRunner;
class Placer;

// A rehearsal appends nothing to sequence buffers: it would write memory that nobody granted.
enum class RunKind { kReal, kRehearsal };

// What the interpreter knows while steps run, on the real device or on meta.
struct Frame {
  std::vector<at::Tensor> values;  // one for each graph value
  std::span<const int64_t> symbols;
  c10::Device device = c10::kCPU;
  RunKind kind = RunKind::kReal;
  int64_t tokens_begin = 0;  // where appends to the sequence group may go
  int64_t tokens_end = INT64_MAX;
  bool keeps_values = false;                    // true: last uses are copied and not moved
  std::function<bool(std::string_view)> pulse;  // Lane::set_pulse
  Placer* placer = nullptr;                     // null: no output has a place
  PieceRunner* pieces = nullptr;                // null: all steps are called one by one
  std::span<const OutputPlace> places;          // by graph output
  std::optional<size_t> failed_at;              // the node that failed
};

// "aten::linear at encoder.layer.3", for error messages.
[[nodiscard]] std::string describe(const srg::Node& node);
// "x", or "without a name": behind "value", where the node or the sizes tell which it is.
[[nodiscard]] std::string describe(const srg::Value& value);

// The sizes, strides and offset of a bound value at these symbols. Errors: kOutOfRange on overflow
// or a negative number.
struct Geometry {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};
Status evaluate_geometry(const srg::Value& value, std::span<const int64_t> symbols, Geometry& out);

// One past the last element that a view reaches, counted from the storage's start; 0 for views
// without elements. Nothing on overflow.
[[nodiscard]] std::optional<uint64_t> elements_reached(const Geometry& geometry);

}  // namespace djinn::exec
