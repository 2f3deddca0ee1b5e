// SPDX-License-Identifier: Apache-2.0

// The executor as whoever runs graphs sees it: what admits them, and what computes on one device.
// An implementation knows its device's kernels (kernel/exec: the host, with LibTorch); the worker
// knows these classes alone, and no type of LibTorch or exception crosses them.
//
//   WeightTable  the named tensors of a mapped model
//   Executor     admits graphs and makes lanes: one device's
//   Program      a graph that passed structure, schema and shape checks against one model; it does
//                not change, and its plans belong to the lane
//   Lane         one stream of execution: the volatile slab, the recorded plans, one run at a time;
//                inside a pulse a run can be set aside, and others run
//
// invariant: a run writes only the lane's slab, the storages that its bindings mark writable, the
// places of its outputs, and sequence buffers at and beyond the committed length.
// invariant: a lane runs programs that its own executor admitted, and is given no others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/base/device_address.h"
#include "kernel/base/isa_level.h"
#include "kernel/base/kernel_table.h"
#include "kernel/base/outcome.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"

namespace djinn::exec {

// A weight in mapped, read-only memory. data stays valid while any program admitted with it lives.
struct Weight {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<int64_t> sizes;  // contiguous
  DeviceAddress data;
  srg::WeightForm form = srg::WeightForm::kPlain;
};

// The bytes that it has in its form. Errors: kMalformed (sizes that overflow, or that its form does
// not have).
Result<uint64_t> bytes_of(const Weight& weight);

class WeightTable {
 public:
  explicit WeightTable(std::vector<Weight> weights);
  [[nodiscard]] const Weight* find(std::string_view name) const;
  [[nodiscard]] size_t size() const { return weights_.size(); }

 private:
  std::vector<Weight> weights_;  // sorted by name
};

// Whether the graph names a weight whose form is not plain: fast kernels alone compute with those.
[[nodiscard]] bool reads_forms(const srg::Graph& graph, const WeightTable& weights);

struct AdmissionLimits {
  uint64_t activation_bytes_max =
      0;  // estimate at the symbols' upper bounds; over it: kQuotaExceeded
  // Of operators that admission may call to infer shapes: each node of a graph with symbols is
  // looked at for several of their values. Over it, before the first: kLimitExceeded.
  uint64_t evaluations_max = UINT64_MAX;
  // Asked between two nodes, on the thread that admits; an error ends the admission with it.
  std::function<Status()> go_on = [] { return Status(); };
};

// What admission found out about an output of the graph.
struct OutputInfo {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<srg::Expr> sizes;  // affine in the graph's symbols
  bool sizes_known = true;       // false: data-dependent; the completion carries them
};

// A storage that this run writes although it existed before: the caller saves what it must before
// run() (ARCHITECTURE section 6). Byte ranges are exact hulls of the written views, joined where
// those of one storage overlap or touch, so no byte is in two of them.
struct WrittenRange {
  srg::StorageIndex storage = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class Program {
 public:
  Program() = default;
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] virtual const srg::Graph& graph() const = 0;
  [[nodiscard]] virtual std::span<const OutputInfo> outputs() const = 0;
  // What a run holds at once of results of its own, at its largest shapes.
  [[nodiscard]] virtual uint64_t activation_bytes_estimate() const = 0;
  // At these values of its symbols, one for each, at least. Kernels' own scratch is not in it.
  [[nodiscard]] virtual uint64_t activation_bytes_at(std::span<const int64_t> symbols) const = 0;
  // Ranges of bound input storages that a run with these symbol values will write. Errors:
  // kOutOfRange.
  virtual Result<std::vector<WrittenRange>> written_ranges(
      std::span<const int64_t> symbols) const = 0;
  // No run writes a bound input storage.
  [[nodiscard]] virtual bool writes_nothing() const = 0;
  // A run may touch any slot of its sequence group, so memory for all of them must be there; else
  // those of its tokens alone (kernel/srg/sequence_reach.h).
  [[nodiscard]] virtual bool reaches_capacity() const = 0;
  // How many of its nodes the executor's own fast kernels compute; 0: it is exact.
  [[nodiscard]] virtual uint32_t fast_nodes() const { return 0; }
};

// Bytes bound to one storage of the graph. Weights need none.
struct StorageBinding {
  DeviceAddress data;
  uint64_t bytes = 0;
  bool writable = false;
};

// Memory of the caller's, of any content, in which an output may be made: a kernel that allocates
// its result as the graph claims it gets this memory for it. Who finds the output elsewhere copies.
struct OutputPlace {
  DeviceAddress data;  // aligned to kTensorAlignment
  uint64_t bytes = 0;  // 0: none
};

struct RunBindings {
  std::span<const int64_t> symbols;          // one value per graph symbol, within its range
  std::span<const StorageBinding> storages;  // one per graph storage; weights are ignored
  std::span<const OutputPlace> places = {};  // one per graph output; or empty: none has any
  // Of the sequence group: where the run's tokens are, and so what djinn::kv_append may write. A
  // program that reaches_capacity() may write behind them.
  int64_t tokens_begin = 0;
  int64_t tokens_end = std::numeric_limits<int64_t>::max();
};

// An output of the last run. Valid until the lane's next run. It may lie in the place of another
// output, where that was made elsewhere.
struct OutputView {
  DType dtype = DType::kInvalid;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // elements
  uint64_t storage_offset = 0;   // elements
  DeviceAddress storage;         // first byte of the whole storage
  uint64_t storage_bytes = 0;
  // The graph storage whose bytes this output is a view of; srg::kLocalStorage if the run made it.
  srg::StorageIndex aliases = srg::kLocalStorage;
};

struct LaneStats {
  uint64_t runs = 0;
  uint64_t begun = 0;          // runs and rehearsals that came to their first operator
  uint64_t runs_together = 0;  // of run_together(), of those that ended well
  uint64_t planned_runs = 0;
  uint64_t plan_records = 0;   // rehearsals, and runs recorded anew after a miss
  uint64_t plan_misses = 0;    // runs that left their plan for malloc
  uint64_t planned_bytes = 0;  // of the slab, for the last run
  uint64_t peak_live_bytes =
      0;  // of the last run, each allocation rounded up to kTensorAlignment; 0 if unplanned
};

// Bounds what lanes take from malloc: recordings, runs that miss their plan, copies of inputs.
class HeapOwner {
 public:
  virtual ~HeapOwner() = default;
  // The heap is about to hold so many bytes in all. An error refuses the allocation, and so does
  // pending, while more is on its way: the run ends with it.
  virtual Outcome<void> allow(uint64_t bytes) = 0;
  // The heap holds so many bytes; what was allowed beyond is not needed until the next run.
  virtual void settle(uint64_t bytes) = 0;
  // Likewise, and is not kept for the next run either.
  virtual void trim(uint64_t) {}
  // A run that has not begun is likely to hold so many bytes in all. Pending: more is on its way,
  // and the run begins when it is there. Who may not have so much begins, too.
  [[nodiscard]] virtual std::optional<Pending> prepare(uint64_t) { return std::nullopt; }
};

// Bytes of a lane's heap, which go back to it.
struct HeapDeleter {
  using pointer = DeviceAddress;
  void (*release)(DeviceAddress memory) = nullptr;
  void operator()(DeviceAddress memory) const { release(memory); }
};
using HeapBytes = std::unique_ptr<std::byte[], HeapDeleter>;

// Of bytes inside the device's memory.
struct DeviceCopy {
  DeviceAddress from;
  DeviceAddress to;
  uint64_t bytes = 0;
};

// Called while something takes long, as a sign of life.
using OnProgress = std::function<void()>;

struct LaneOptions {
  int threads = 1;
  // Memory for the slab: called when a larger plan needs it, gives at least bytes (aligned to
  // kTensorAlignment), zeroed, or pending while that is on its way, or an error (quota). Until it
  // gives a new one, the former slab is in use; then never again.
  std::function<Outcome<std::span<std::byte>>(uint64_t bytes, const OnProgress& on_progress)>
      grow_slab;
  HeapOwner* heap = nullptr;  // outlives the lane; null: no bound
  bool planned = true;        // false: plain malloc, for comparison and tests
};

// Whose runs a lane executes. What one owner's runs leave in the lane's memory no other's are
// given.
struct LaneOwner {
  uint64_t id = 0;
  uint64_t bytes_max = UINT64_MAX;  // of a run's slab, and of its heap; over it: kQuotaExceeded
};

// One of several runs of a program that are computed together.
struct RunTogether {
  RunBindings bindings;
  LaneOwner owner;
  std::function<bool(std::string_view)> pulse;  // as Lane::set_pulse()
};

class Lane {
 public:
  Lane() = default;
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // What run() refuses before it computes: a run whose results alone are over the owner's limit.
  // symbols: the run's. Errors: kQuotaExceeded.
  [[nodiscard]] virtual Status check_size(const Program& program,
                                          std::span<const int64_t> symbols) const = 0;

  // Runs program once; on success outputs() holds one view per graph output. The error of a failing
  // operator names it and its module path. Pending where the heap's owner or grow_slab was: to be
  // run again. Blocking; one thread at a time.
  virtual Outcome<void> run(Program& program, const RunBindings& bindings) = 0;
  // Likewise, of a program without symbols that will not be run again: nothing is rehearsed, and no
  // plan is kept.
  virtual Outcome<void> run_once(const Program& program, const RunBindings& bindings) = 0;
  [[nodiscard]] virtual std::span<const OutputView> outputs() const = 0;
  // Runs of one program, whose fast kernels compute what they can for all of them at once: each has
  // the bytes of run(). Gives which have ended well. Those that have not are to be run by
  // themselves, as if they had not been here: for want of a plan or of memory, after an error, or
  // because somebody gave them up.
  virtual std::vector<bool> run_together(const Program& program,
                                         std::span<const RunTogether> runs) = 0;
  // As outputs(), of one of the last run_together() that has ended well.
  [[nodiscard]] virtual std::span<const OutputView> outputs_of(size_t run) const = 0;
  // The node that the last run failed in; nothing where it did not, or failed in none.
  [[nodiscard]] virtual std::optional<size_t> failed_at() const = 0;
  [[nodiscard]] virtual LaneStats stats() const = 0;

  // Of the runs from now on. The slab is zeroed as far as they reach where others' have written.
  virtual void set_owner(const LaneOwner& owner) = 0;

  // Called before each operator of the runs from now on, with its name, and with none after the
  // last, so that a long run can be told from an operator that hangs. False ends the run before
  // that operator, with kCancelled. Throws nothing; what it refers to must live as long as runs may
  // follow.
  virtual void set_pulse(std::function<bool(std::string_view)> pulse) = 0;

  // Inside a pulse that was told an operator: the run that it is of is set aside with all that it
  // has of this lane, until resume(). Runs in between, of whatever program, owner and pulse, have a
  // slab of the heap, and outputs of their own, which are gone with resume(). What is set aside
  // stands still, and its bytes are those that it would have had. Precondition: nothing is set
  // aside.
  virtual void pause() = 0;
  virtual void resume() = 0;

  // Bytes of this lane's heap, 64-byte aligned, of any content. Errors, and pending: what the
  // heap's owner says.
  virtual Outcome<HeapBytes> allocate(uint64_t bytes) = 0;
  // Drops the last run's outputs, and trims the heap.
  virtual void trim() = 0;

  // Drops the plans of a program that is about to go.
  virtual void forget(const Program& program) = 0;

  // --- the device's memory, on the lane's thread, in the order of the runs. Ranges do not overlap.
  virtual void copy_in(std::span<const std::byte> from, DeviceAddress to) = 0;
  // As copy_elements() of output.h.
  virtual Status copy_out(const OutputView& view, std::span<std::byte> out) = 0;
  virtual void copy(DeviceAddress from, DeviceAddress to, uint64_t bytes) = 0;
  // Likewise, all of them at once, with all of the lane's threads; the caches are left to what is
  // computed next.
  virtual void copy_past_caches(std::span<const DeviceCopy> copies) = 0;
  // Until all that was computed and copied is done: before somebody counts on it, or touches memory
  // that it may use, by another way than this lane. On the host it is done already. Error:
  // kDeviceLost, after which the process can compute nothing more.
  virtual Status wait() = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Structural verification is the caller's duty (srg/verify.h). Any thread. Errors: kUnsupported
  // for operators outside the allow-list, kNotFound for unknown weights, kShapeMismatch,
  // kInvalidArgument for arguments that the schema refuses, kPermissionDenied for a graph that
  // writes a weight, kQuotaExceeded, kLimitExceeded, what go_on says. weights must outlive the
  // program.
  virtual Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights,
                                                 const AdmissionLimits& limits) = 0;

  // The inputs that a run of the graph may write, by its operators' schemas alone: nothing is
  // called, not even to infer a shape. Any thread. Precondition: srg::verify() accepts the graph.
  [[nodiscard]] virtual std::vector<srg::StorageIndex> inputs_written(
      const srg::Graph& graph) const = 0;

  // Errors: kInvalidArgument without a thread, or without memory for a planned lane's slab.
  virtual Result<std::unique_ptr<Lane>> make_lane(LaneOptions options) = 0;

  // Bounds the instructions that its own kernels are made of; by default it takes the best that the
  // machine has. Before any other call. Kernels for other devices than the host have no such level.
  virtual void limit_isa(IsaLevel) {}
  // What its own kernels are made of, for people: "avx512"; "": it has none.
  [[nodiscard]] virtual std::string_view isa() const { return {}; }

  // Runs what runs need most, so that code and threads are made now and not by the first of them,
  // on this many threads, which this makes for the calling thread.
  virtual void warm_up(int threads) = 0;

  // What the host's products were measured to give. Executors without kernels of our own have no
  // table.
  virtual void take_kernels(const KernelTable&) {}
  // Measures a table with so many threads, the calling thread's, which warm_up() has made, in at
  // most half a second, and takes it.
  virtual void measure_kernels(int /*threads*/) {}
  // What was taken; else one without rates.
  [[nodiscard]] virtual std::optional<KernelTable> kernels() const { return {}; }
};

}  // namespace djinn::exec
