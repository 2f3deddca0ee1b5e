// SPDX-License-Identifier: Apache-2.0

// The executor: admits graphs and runs them on the host with PyTorch's own kernels. This header is
// all that the worker sees of LibTorch: no torch type crosses it, and no exception (each function
// below catches at its own boundary).
//
//   WeightTable  the named tensors of a mapped model
//   Program      a graph that passed structure, schema and shape checks against one model, with
//                operators resolved and stacks prefilled. Immutable after admit(), but for the plan
//                cache, which belongs to its lane.
//   Lane         one stream of execution: the volatile slab, the recorded plans, one run at a time
//
// invariant: a run writes only the lane's slab, the storages that its bindings mark writable, the
// places of its outputs, and sequence buffers at and beyond the committed length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernel/base/result.h"
#include "kernel/srg/graph.h"

namespace djinn::exec {

// A weight in mapped, read-only memory. data stays valid while any program admitted with it lives.
struct Weight {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<int64_t> sizes;  // contiguous
  const std::byte* data = nullptr;
};

class WeightTable {
 public:
  explicit WeightTable(std::vector<Weight> weights);
  [[nodiscard]] const Weight* find(std::string_view name) const;
  [[nodiscard]] size_t size() const { return weights_.size(); }

 private:
  std::vector<Weight> weights_;  // sorted by name
};

struct AdmissionLimits {
  uint64_t activation_bytes_max =
      0;  // estimate at the symbols' upper bounds; over it: kQuotaExceeded
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

// Tokens that this run appends to a sequence buffer: slots [first_token, first_token + tokens) of
// dimension 2 of a [batch, heads, capacity, dim] view.
struct AppendedRange {
  srg::StorageIndex storage = 0;
  int64_t first_token = 0;
  int64_t tokens = 0;
};

class Program {
 public:
  // Structural verification is the caller's duty (srg/verify.h). Errors: kUnsupported for operators
  // outside the allow-list, kNotFound for unknown weights, kShapeMismatch, kInvalidArgument for
  // arguments that the schema refuses, kPermissionDenied for a graph that writes a weight,
  // kQuotaExceeded. weights must outlive the program.
  static Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights,
                                                const AdmissionLimits& limits);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] const srg::Graph& graph() const;
  [[nodiscard]] std::span<const OutputInfo> outputs() const;
  [[nodiscard]] uint64_t activation_bytes_estimate() const;
  // Ranges of bound input storages that a run with these symbol values will write.
  Result<std::vector<WrittenRange>> written_ranges(std::span<const int64_t> symbols) const;
  // No run writes a bound input storage.
  [[nodiscard]] bool writes_nothing() const;
  // What djinn::kv_append will write to sequence buffers; nothing else may write them.
  Result<std::vector<AppendedRange>> appended_ranges(std::span<const int64_t> symbols) const;

  struct Impl;
  [[nodiscard]] Impl& impl() const { return *impl_; }

 private:
  explicit Program(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The inputs that a run of the graph may write, by its operators' schemas alone: nothing is called,
// not even on the meta device. Precondition: srg::verify() accepts the graph.
std::vector<srg::StorageIndex> inputs_written(const srg::Graph& graph);

// Bytes bound to one storage of the graph. Weights need none.
struct StorageBinding {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  bool writable = false;
};

// Memory of the caller's, of any content, in which an output may be made: a kernel that allocates
// its result as the graph claims it gets this memory for it. Who finds the output elsewhere copies.
struct OutputPlace {
  std::byte* data = nullptr;  // 64-byte aligned
  uint64_t bytes = 0;         // 0: none
};

struct RunBindings {
  std::span<const int64_t> symbols;          // one value per graph symbol, within its range
  std::span<const StorageBinding> storages;  // one per graph storage; weights are ignored
  std::span<const OutputPlace> places = {};  // one per graph output; or empty: none has any
};

// An output of the last run. Valid until the lane's next run. It may lie in the place of another
// output, where that was made elsewhere.
struct OutputView {
  DType dtype = DType::kInvalid;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;        // elements
  uint64_t storage_offset = 0;         // elements
  const std::byte* storage = nullptr;  // first byte of the whole storage
  uint64_t storage_bytes = 0;
  // The graph storage whose bytes this output is a view of; srg::kLocalStorage if the run made it.
  srg::StorageIndex aliases = srg::kLocalStorage;
};

struct LaneStats {
  uint64_t runs = 0;
  uint64_t begun = 0;  // runs and rehearsals that came to their first operator
  uint64_t planned_runs = 0;
  uint64_t plan_records = 0;   // rehearsals, and runs recorded anew after a miss
  uint64_t plan_misses = 0;    // runs that left their plan for malloc
  uint64_t planned_bytes = 0;  // of the slab, for the last run
  uint64_t peak_live_bytes =
      0;  // of the last run, each allocation rounded up to 64; 0 if unplanned
};

// Bounds what lanes take from malloc: recordings, runs that miss their plan, copies of inputs.
class HeapOwner {
 public:
  virtual ~HeapOwner() = default;
  // The heap is about to hold so many bytes in all. An error refuses the allocation, and the run
  // ends with it.
  virtual Status allow(uint64_t bytes) = 0;
  // The heap holds so many bytes; what was allowed beyond is not needed now.
  virtual void settle(uint64_t bytes) = 0;
};

// Bytes of a lane's heap.
struct HeapDeleter {
  void operator()(std::byte* memory) const;
};
using HeapBytes = std::unique_ptr<std::byte[], HeapDeleter>;

struct LaneOptions {
  int threads = 1;
  // Memory for the slab: called when a larger plan needs it, gives at least bytes (64-byte
  // aligned), zeroed, or an error (quota). After an error the former slab is still in use; after it
  // gave a new one, never again.
  std::function<Result<std::span<std::byte>>(uint64_t bytes)> grow_slab;
  HeapOwner* heap = nullptr;  // outlives the lane; null: no bound
  bool planned = true;        // false: plain malloc, for comparison and tests
};

// Whose runs a lane executes. What one owner's runs leave in the lane's memory no other's are
// given.
struct LaneOwner {
  uint64_t id = 0;
  uint64_t bytes_max = UINT64_MAX;  // for what one run computes; over it: kQuotaExceeded
};

class Lane {
 public:
  static Result<std::unique_ptr<Lane>> make(LaneOptions options);
  ~Lane();

  // What run() refuses before it computes: a program without symbols whose estimate is over the
  // owner's limit. Errors: kQuotaExceeded.
  [[nodiscard]] Status check_size(const Program& program) const;

  // Runs program once; on success outputs() holds one view per graph output. The error of a failing
  // operator names it and its module path. Blocking; one thread at a time.
  Status run(Program& program, const RunBindings& bindings);
  // Likewise, of a program without symbols that will not be run again: nothing is rehearsed, and no
  // plan is kept.
  Status run_once(const Program& program, const RunBindings& bindings);
  [[nodiscard]] std::span<const OutputView> outputs() const;
  [[nodiscard]] LaneStats stats() const;

  // Of the runs from now on. The slab is zeroed as far as they reach where others' have written.
  void set_owner(const LaneOwner& owner);

  // Called before each operator of the runs from now on, with its name, and with none after the
  // last, so that a long run can be told from an operator that hangs. False ends the run before
  // that operator, with kCancelled. Throws nothing; what it refers to must live as long as runs may
  // follow.
  void set_pulse(std::function<bool(std::string_view)> pulse);

  // Bytes of this lane's heap, 64-byte aligned, of any content. Errors: what the heap's owner says.
  Result<HeapBytes> allocate(uint64_t bytes);
  // Drops the last run's outputs, and settles the heap.
  void trim();

  // Drops the plans of a program that is about to go.
  void forget(const Program& program);

  struct Impl;

 private:
  explicit Lane(std::unique_ptr<Impl> impl);
  Status carry_out(const std::function<Status()>& run);
  std::unique_ptr<Impl> impl_;
};

// Copies the elements of a view, contiguous and in order, to out, whose size must be exactly
// element count * element size. Never reads the gaps between elements.
Status copy_elements(const OutputView& view, std::span<std::byte> out);

// Copies from to the beginning of to, with the threads of the lane whose thread this is called on,
// and leaves the caches to what is computed next. They do not overlap; from.size() <= to.size().
void copy_past_caches(std::span<const std::byte> from, std::span<std::byte> to);

// Sets the allocator hook and the thread count. First thing in main, once, before any other call.
// More than one thread starts LibTorch's pool at once, and threads that run before a process is
// confined stay unconfined: a process that will be passes 1. Lanes and warm_up set their own count.
void initialise(int threads);

// Runs matmul, sdpa and linear in every dtype on this many threads, which this makes for the
// calling thread: with one before the process is confined (code generation and CPU detection open
// files), with all of them on the lane's thread afterwards (threads inherit the confinement).
void warm_up(int threads);

}  // namespace djinn::exec
