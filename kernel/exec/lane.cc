// SPDX-License-Identifier: Apache-2.0

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <vector>

#include "kernel/base/alignment.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/bindings.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/inference.h"
#include "kernel/exec/inner_pulse.h"
#include "kernel/exec/interpreter.h"
#include "kernel/exec/lane_device.h"
#include "kernel/exec/plan_cache.h"
#include "kernel/exec/program.h"
#include "kernel/exec/slab_content.h"
#include "kernel/exec/streaming_copy.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/executor/output.h"

namespace djinn::exec {

namespace {

// This is the share of the used bytes that allocations of differing sizes leave unused between
// them.
constexpr uint64_t kGapsOneIn = 4;
// Kernels take some memory beside their results, such as a number as a tensor, or what they convert
// of a few rows; no estimate has it. It is little beside the steps in which a lane's heap grows.
constexpr uint64_t kAsideBytes = uint64_t{96} << 10;

// Of a program of which no run was recorded yet: what kernels hold beside its results, of those.
constexpr uint64_t kAsideOneIn = 8;

constexpr uint64_t kInnerSlabStep = uint64_t{1} << 20;  // similar programs then share one

// Gives what an arena needs for runs of which this much is alive at once.
constexpr uint64_t with_gaps(uint64_t live_bytes) {
  return live_bytes + live_bytes / kGapsOneIn + kAsideBytes;
}

// What runs that go on together take beside their plans is refused: each is then run by itself.
class NoHeap final : public HeapOwner {
  Outcome<void> allow(uint64_t) override {
    return Error{ErrorCode::kOutOfMemory, "A run together with others has its plan's memory."};
  }
  void settle(uint64_t) override {}
};

// ATen turns oneDNN off for the process when one of its matrix products is refused memory; what is
// computed then would have other kernels, and so other bits.
void use_all_kernels() {
  at::globalContext().setUserEnabledMkldnn(true);
}

// A lane is given programs of its own executor only (executor.h), which are all of this kind.
const AdmittedGraph& admitted(const Program& program) {
  return static_cast<const CpuProgram&>(program).admitted();
}

struct Outputs {
  std::vector<at::Tensor> kept;  // what views point into
  std::vector<OutputView> views;
};

// A run of run_together(), which has a plan.
struct Together {
  Together(const RunTogether& run, Plan& its_plan, size_t place, HeapOwner& none)
      : given(&run), plan(&its_plan), number(place), heap(none) {}

  const RunTogether* given;
  Plan* plan;
  size_t number;  // of those that were asked for
  Heap heap;
  std::vector<c10::Storage> storages;
  std::optional<Replayer> replayer;
};

// What the runs of a lane have, one at a time. One that is set aside keeps it.
struct Context {
  // memory: null for a lane of the host.
  Context(HeapOwner& of_heap, DeviceMemory* memory) : heap(of_heap, memory), slab_content(memory) {}

  Heap heap;
  std::optional<RegisteredSlab> slab;
  std::optional<RegisteredSlab> places;  // of kept outputs
  SlabContent slab_content;
  uint64_t refused_slab_bytes = UINT64_MAX;  // to room_together(), the least
  LaneOwner owner;
  const Plan* plan = nullptr;  // of the run
  Outputs outputs;
  std::vector<Outputs> outputs_together;  // of the last run_together(), by run
  std::optional<size_t> failed_at;
  std::function<bool(std::string_view)> pulse;
};

// While it lives, this thread is for LibTorch and its allocator as it is outside of any run.
struct Aside {
  Aside(const at::ThreadLocalState& outside, uint64_t heap_bytes)
      : state(outside), live_bytes(heap_bytes) {}

  at::ThreadLocalStateGuard state;
  ScopedSink no_sink;
  ScopedSink no_device_sink{Where::kDevice};
  ScopedHeap no_heap;
  InnerPulse::Pulse none;
  InnerPulse no_pulse{none};
  uint64_t live_bytes;
};

Status copy_out_of(LaneDevice& device, const OutputView& view, std::span<std::byte> out) {
  return copy_elements_through(view, out, device.room(),
                               [&](uint64_t offset, std::span<std::byte> to) {
                                 return device.copy_out(view.storage + offset, to);
                               });
}

// Of the host, or of a device.
class TorchLane final : public Lane {
 public:
  // device: null for the host.
  TorchLane(std::unique_ptr<LaneDevice> device, LaneOptions options)
      : device_(std::move(device)), options_(std::move(options)) {}

  [[nodiscard]] Status check_size(const Program& program,
                                  std::span<const int64_t> symbols) const override;
  Outcome<void> run(Program& program, const RunBindings& bindings) override;
  Outcome<void> run_once(const Program& program, const RunBindings& bindings) override;
  [[nodiscard]] std::span<const OutputView> outputs() const override { return in_->outputs.views; }
  [[nodiscard]] std::optional<size_t> failed_at() const override { return in_->failed_at; }
  [[nodiscard]] LaneStats stats() const override { return stats_; }
  void set_owner(const LaneOwner& owner) override;
  void set_pulse(std::function<bool(std::string_view)> pulse) override {
    in_->pulse = std::move(pulse);
  }
  std::vector<bool> run_together(const Program& program,
                                 std::span<const RunTogether> runs) override;
  [[nodiscard]] std::span<const OutputView> outputs_of(size_t run) const override;
  Outcome<HeapBytes> allocate(uint64_t bytes) override;
  void trim() override;
  void pause() override;
  void resume() override;
  void forget(const Program& program) override;
  void copy_in(std::span<const std::byte> from, DeviceAddress to) override;
  Status copy_out(const OutputView& view, std::span<std::byte> out) override;
  void copy(DeviceAddress from, DeviceAddress to, uint64_t bytes) override;
  void copy_past_caches(std::span<const DeviceCopy> copies) override;
  Status wait() override;

 private:
  // Calls `work` with LibTorch as this lane wants it. Where the heap refused memory, this ends as
  // the heap says.
  Outcome<void> carry_out(const std::function<Outcome<void>()>& work);
  Outcome<void> compute(const Program& program, const RunBindings& bindings);
  Outcome<void> compute_once(const Program& program, const RunBindings& bindings);
  Outcome<void> run_planned(const Program& program, const RunBindings& bindings);
  [[nodiscard]] uint64_t expected_bytes(const Program& program,
                                        std::span<const int64_t> symbols) const;
  Status rehearse(const AdmittedGraph& graph, std::vector<int64_t> symbols, Plan& plan);
  // Allocations go to `memory` first.
  Status record(const AdmittedGraph& graph, const RunBindings& bindings, Plan& plan, RunKind kind,
                std::span<std::byte> memory);
  Outcome<void> record_run(const AdmittedGraph& graph, const RunBindings& bindings, Plan& plan);
  Outcome<void> replay(const AdmittedGraph& graph, const RunBindings& bindings, Plan& plan);
  Outcome<void> reserve(uint64_t bytes);
  Outcome<void> grow_slab(uint64_t bytes);
  Outcome<void> grow_inner_slab(uint64_t bytes);
  void drop_inner_slab();
  Outcome<HeapBytes> take_heap(uint64_t bytes, Content content);
  Outcome<void> run_in_arena(const AdmittedGraph& graph, const RunBindings& bindings, Plan& plan);
  Outcome<std::span<std::byte>> room_for(const AdmittedGraph& graph, const RunBindings& bindings);
  Outcome<std::span<std::byte>> clean_memory(uint64_t bytes);
  void register_places(std::span<const OutputPlace> all);
  Status execute_on(Sink& sink, const AdmittedGraph& graph, const RunBindings& bindings,
                    RunKind kind = RunKind::kReal, PieceRunner* pieces = nullptr);
  Status execute(const AdmittedGraph& graph, const RunBindings& bindings, RunKind kind,
                 Placer* placer, PieceRunner* pieces);
  PieceRunner* begin_pieces(const AdmittedGraph& graph, const LanePieces::Placements& placements,
                            Replayer& replayer);
  std::vector<bool> compute_together(const Program& program, std::span<const RunTogether> runs);
  std::deque<Together> choose_together(const Program& program, std::span<const RunTogether> runs);
  uint64_t room_together(uint64_t bytes);
  void begin_together(const AdmittedGraph& graph, Together& run, uint64_t offset,
                      Companion& companion);
  bool end_together(const AdmittedGraph& graph, Together& run, const Companion& companion);
  void drop_outputs();
  // Whether libraries have what they keep; if not, the heap says why.
  Result<bool> warm_up();
  [[nodiscard]] DeviceMemory* memory() const {
    return device_ == nullptr ? nullptr : &device_->memory();
  }
  [[nodiscard]] Where where() const { return device_ == nullptr ? Where::kHost : Where::kDevice; }

  std::unique_ptr<LaneDevice> device_;
  bool is_warm_ = false;
  bool is_idle_ = true;          // nothing was given to a device since it was waited for
  uint64_t standing_bytes_ = 0;  // of a device's heap, that libraries keep
  LaneOptions options_;
  UnboundedHeap unbounded_;
  NoHeap no_heap_;
  LaneStats stats_;
  PlanCache plans_;
  // Of runs inside a pause; beside them it is what the last ones left there.
  HeapBytes inner_slab_;
  uint64_t inner_slab_bytes_ = 0;
  size_t first_together_ = 0;  // of the next run_together(): where to begin
  // invariant: in_ == (aside_ ? &inner_ : &outer_)
  Context outer_{options_.heap ? *options_.heap : unbounded_, memory()};
  Context inner_{options_.heap ? *options_.heap : unbounded_, memory()};
  Context* in_ = &outer_;
  std::optional<at::ThreadLocalState> outside_;  // of the lane's thread, outside of any run
  std::optional<Aside> aside_;
};

OutputView view_of_output(const at::Tensor& tensor, std::span<const c10::Storage> storages) {
  OutputView view;
  view.dtype = from_torch(tensor.scalar_type());
  view.sizes = tensor.sizes().vec();
  view.strides = tensor.strides().vec();
  view.storage_offset = static_cast<uint64_t>(tensor.storage_offset());
  view.storage = static_cast<const std::byte*>(tensor.storage().data());
  view.storage_bytes = tensor.storage().nbytes();
  for (srg::StorageIndex i = 0; i < storages.size(); ++i) {
    if (tensor.storage().is_alias_of(storages[i])) view.aliases = i;
  }
  return view;
}

Status keep_outputs(const AdmittedGraph& graph, std::span<const c10::Storage> storages,
                    const Frame& frame, Outputs& out) {
  for (const srg::ValueId id : graph.graph.outputs) {
    if (!frame.values[id].defined()) {
      return Error{ErrorCode::kInvalidArgument, "An output is a result that its node left out."};
    }
    // Whoever reads the bytes does not see that their conjugate or negative is meant.
    const at::Tensor tensor = frame.values[id].resolve_conj().resolve_neg();
    if (from_torch(tensor.scalar_type()) == DType::kInvalid) {
      return Error{ErrorCode::kUnsupported, "An output has a dtype that does not leave a run."};
    }
    out.kept.push_back(tensor);
    out.views.push_back(view_of_output(tensor, storages));
  }
  return {};
}

void TorchLane::drop_outputs() {
  in_->outputs = {};
  in_->outputs_together.clear();
  in_->places.reset();
}

// What fits at the largest shapes is not looked at again.
Status TorchLane::check_size(const Program& program, std::span<const int64_t> symbols) const {
  if (program.activation_bytes_estimate() <= in_->owner.bytes_max) return {};
  const uint64_t bytes = program.activation_bytes_at(symbols);
  return bytes <= in_->owner.bytes_max ? Status() : over_limit(bytes, in_->owner.bytes_max);
}

Outcome<void> TorchLane::compute_once(const Program& program, const RunBindings& bindings) {
  c10::InferenceMode inference_mode;
  DJINN_CHECK(check_bindings(admitted(program), bindings));
  DJINN_CHECK(check_size(program, bindings.symbols));
  if (const auto pending = in_->heap.prepare(0)) return *pending;
  std::span<std::byte> memory;
  if (options_.planned) {
    DJINN_TRY(memory, room_for(admitted(program), bindings));
  }
  ++stats_.runs;
  stats_.planned_bytes = memory.size();
  stats_.peak_live_bytes = 0;
  Arena arena(memory, in_->heap);
  return execute_on(arena, admitted(program), bindings);
}

// Gives the clean part of the slab for a run without symbols: what its allocations take at most.
Outcome<std::span<std::byte>> TorchLane::room_for(const AdmittedGraph& graph,
                                                  const RunBindings& bindings) {
  const bool placed =
      !bindings.places.empty() &&
      std::ranges::all_of(bindings.places, [](const OutputPlace& one) { return one.bytes > 0; });
  const uint64_t estimate = placed ? graph.passing_bytes : graph.activation_bytes;
  return clean_memory(with_gaps(estimate));
}

// Gives this many bytes of the slab, which hold nothing of others'.
Outcome<std::span<std::byte>> TorchLane::clean_memory(uint64_t bytes) {
  DJINN_CHECK(reserve(bytes));
  if (!in_->slab) return std::span<std::byte>();
  const auto memory =
      in_->slab->bytes().first(std::min<uint64_t>(bytes, in_->slab->bytes().size()));
  in_->slab_content.make_clean(memory, 0, memory.size(), in_->owner.id);
  return memory;
}

Outcome<void> TorchLane::compute(const Program& program, const RunBindings& bindings) {
  c10::InferenceMode inference_mode;
  DJINN_CHECK(check_bindings(admitted(program), bindings));
  DJINN_CHECK(check_size(program, bindings.symbols));
  ++stats_.runs;
  if (options_.planned) return run_planned(program, bindings);
  return execute(admitted(program), bindings, RunKind::kReal, nullptr, nullptr);
}

// A bucket's first run rehearses at the bucket's top: what fits there fits every run. If that fails
// (zeros may be no legal input), or the owner may not have what the top holds, the run itself is
// recorded. So are programs without symbols, whose runs are all at the top. What either holds is
// asked for before it begins, at once.
Outcome<void> TorchLane::run_planned(const Program& program, const RunBindings& bindings) {
  std::vector<int64_t> top = bucket_top(program.graph(), bindings.symbols);
  Plan& plan = plans_.plan(&program, top);
  in_->plan = &plan;
  const bool is_first = plan.records == 0 && !top.empty();
  if (is_first) respect_capacity(program.graph(), top);
  const bool rehearses = is_first && program.activation_bytes_at(top) <= in_->owner.bytes_max;
  uint64_t bytes = plan.heap_bytes;
  if (is_first)
    bytes = expected_bytes(program, rehearses ? std::span<const int64_t>(top) : bindings.symbols);
  if (const auto pending = in_->heap.prepare(bytes)) return *pending;
  if (rehearses) {
    const Status rehearsed = rehearse(admitted(program), std::move(top), plan);
    if (in_->heap.awaits_more()) return Pending{};
    const bool refused = in_->heap.take_refusal().has_value();
    if (refused) use_all_kernels();
    if (!rehearsed && !refused && rehearsed.error().code == ErrorCode::kOutOfMemory) {
      return rehearsed.error();
    }
    in_->heap.count_anew();  // what the rehearsal took is not the plan's
  }
  if (plan.in_arena) return run_in_arena(admitted(program), bindings, plan);
  if (plan.needs_record) return record_run(admitted(program), bindings, plan);
  return replay(admitted(program), bindings, plan);
}

// What a run at these symbols will hold, as far as can be told before one was recorded there: its
// results, and what kernels held beside them elsewhere, or products hold.
uint64_t TorchLane::expected_bytes(const Program& program, std::span<const int64_t> symbols) const {
  const uint64_t results = program.activation_bytes_at(symbols);
  const uint64_t held =
      symbols.empty() ? results : admitted(program).footprint.peak_bytes_held(symbols);
  const auto aside = plans_.aside_bytes(&program);
  const uint64_t most = aside ? std::max(held, checked_add(results, *aside).value_or(UINT64_MAX))
                              : checked_add(held, results / kAsideOneIn).value_or(UINT64_MAX);
  return checked_add(most, kAsideBytes).value_or(UINT64_MAX);
}

Status TorchLane::rehearse(const AdmittedGraph& graph, std::vector<int64_t> symbols, Plan& plan) {
  const auto scratch = catching([&] { return Scratch::make(graph, symbols, in_->heap); });
  if (!scratch) return scratch.error();
  DJINN_CHECK(record(graph, {symbols, scratch->bindings()}, plan, RunKind::kRehearsal, {}));
  drop_outputs();
  return {};
}

Status TorchLane::record(const AdmittedGraph& graph, const RunBindings& bindings, Plan& plan,
                         RunKind kind, std::span<std::byte> memory) {
  Arena arena(memory, in_->heap);
  Recorder recorder(arena);
  DJINN_CHECK(execute_on(recorder, graph, bindings, kind));
  if (in_->heap.is_refused())
    return {};  // a kernel may go on without, in another way: run() fails it
  if (recorder.is_too_long()) {
    plans_.use_arena(plan, with_gaps(recorder.peak_live_bytes()));
  } else {
    plans_.learn(plan, recorder.finish());
  }
  const uint64_t peak = recorder.peak_live_bytes();
  if (!bindings.symbols.empty()) {
    plan.aside_bytes = peak - std::min(peak, graph.footprint.peak_bytes(bindings.symbols));
  }
  ++stats_.plan_records;
  stats_.planned_bytes = plan.planned_bytes;
  stats_.peak_live_bytes = peak;
  return {};
}

Outcome<void> TorchLane::record_run(const AdmittedGraph& graph, const RunBindings& bindings,
                                    Plan& plan) {
  std::span<std::byte> memory;
  if (bindings.symbols.empty()) {
    DJINN_TRY(memory, room_for(graph, bindings));
  }
  return record(graph, bindings, plan, RunKind::kReal, memory);
}

// This runs what fits no plan, and counts it as such.
Outcome<void> TorchLane::run_in_arena(const AdmittedGraph& graph, const RunBindings& bindings,
                                      Plan& plan) {
  const uint64_t bytes =
      std::min(plan.planned_bytes, in_->owner.bytes_max);  // the rest: the heap's
  DJINN_TRY(const std::span<std::byte> memory, clean_memory(bytes));
  stats_.planned_bytes = plan.planned_bytes;
  stats_.peak_live_bytes = 0;
  Arena arena(memory, in_->heap);
  const Status status = execute_on(arena, graph, bindings);
  ++stats_.plan_misses;
  plan.heap_bytes = in_->heap.taken_bytes();
  return status;
}

Outcome<void> TorchLane::replay(const AdmittedGraph& graph, const RunBindings& bindings,
                                Plan& plan) {
  DJINN_CHECK(reserve(plan.planned_bytes));
  if (in_->slab)
    in_->slab_content.make_clean(in_->slab->bytes(), 0, plan.planned_bytes, in_->owner.id);
  const auto placements = plan.placements;  // the plan may learn while this run is set aside
  Replayer replayer(*placements, in_->slab ? in_->slab->bytes() : std::span<std::byte>(),
                    in_->heap);
  PieceRunner* const pieces = begin_pieces(graph, placements, replayer);
  const Status status = execute_on(replayer, graph, bindings, RunKind::kReal, pieces);
  plan.heap_bytes = in_->heap.taken_bytes();
  if (in_->heap.is_refused())
    return status;  // nothing is known yet; the run is repeated, or was too large
  if (replayer.fits()) {
    ++stats_.planned_runs;
  } else {
    ++stats_.plan_misses;
    plan.needs_record = plan.records < kRecordsMax;
  }
  stats_.planned_bytes = plan.planned_bytes;
  stats_.peak_live_bytes = replayer.peak_live_bytes();
  return status;
}

// Runs inside a pause have another slab each time. Of what our own kernels do nobody has looked at
// captures yet.
PieceRunner* TorchLane::begin_pieces(const AdmittedGraph& graph,
                                     const LanePieces::Placements& placements, Replayer& replayer) {
  if (device_ == nullptr || aside_ || graph.fast_nodes > 0) return nullptr;
  device_->pieces().begin(graph, placements, replayer);
  return &device_->pieces();
}

bool is_aligned(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % kTensorAlignment == 0;
}

Outcome<void> TorchLane::reserve(uint64_t bytes) {
  if (bytes == 0 || (in_->slab && in_->slab->bytes().size() >= bytes)) return {};
  if (bytes > in_->owner.bytes_max) return over_limit(bytes, in_->owner.bytes_max);
  return grow_slab(bytes);
}

Outcome<void> TorchLane::grow_slab(uint64_t bytes) {
  if (aside_) return grow_inner_slab(bytes);
  DJINN_CHECK(wait());  // for runs that have the former one
  if (device_ != nullptr) device_->pieces().drop();
  DJINN_TRY(const std::span<std::byte> memory, options_.grow_slab(bytes, [this] {
    if (in_->pulse) in_->pulse({});
  }));
  DJINN_ASSERT(memory.size() >= bytes && is_aligned(memory.data()));
  in_->slab.reset();
  in_->slab.emplace(memory);
  in_->slab_content.forget();
  return {};
}

// The former one goes first: nothing lives there between two runs.
Outcome<void> TorchLane::grow_inner_slab(uint64_t bytes) {
  drop_inner_slab();
  const auto rounded = align_up(bytes, kInnerSlabStep);
  if (!rounded) return over_limit(bytes, in_->owner.bytes_max);
  DJINN_TRY(inner_slab_, take_heap(*rounded, Content::kZeros));
  inner_slab_bytes_ = *rounded;
  in_->slab.emplace(std::span(inner_slab_.get().on_host(), *rounded));
  in_->heap.set_others(in_->heap.others() + *rounded);
  return {};
}

void TorchLane::drop_inner_slab() {
  inner_.slab.reset();
  inner_.slab_content.forget();
  const uint64_t others = inner_.heap.others();
  inner_.heap.set_others(others - std::min(others, inner_slab_bytes_));
  inner_slab_.reset();
  inner_slab_bytes_ = 0;
}

// LibTorch's deleter has to know that places are not its own to free.
void TorchLane::register_places(std::span<const OutputPlace> all) {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  for (const OutputPlace& one : all) {
    if (one.bytes == 0) continue;
    std::byte* const data = one.data.on_host();
    begin = begin == nullptr ? data : std::min(begin, data);
    end = std::max(end, data + one.bytes);
  }
  if (begin != nullptr) in_->places.emplace(std::span(begin, end));
}

Status TorchLane::execute_on(Sink& sink, const AdmittedGraph& graph, const RunBindings& bindings,
                             RunKind kind, PieceRunner* pieces) {
  register_places(bindings.places);
  Placer placer(sink);
  ScopedSink scope(placer, where());
  return execute(graph, bindings, kind, bindings.places.empty() ? nullptr : &placer, pieces);
}

Frame frame_of(const AdmittedGraph& graph, const RunBindings& bindings) {
  Frame frame;
  frame.device = graph.device;
  frame.symbols = bindings.symbols;
  frame.tokens_begin = bindings.tokens_begin;
  if (!graph.reaches_capacity) frame.tokens_end = bindings.tokens_end;
  return frame;
}

Status TorchLane::execute(const AdmittedGraph& graph, const RunBindings& bindings, RunKind kind,
                          Placer* placer, PieceRunner* pieces) {
  const std::vector<c10::Storage> storages = storages_of(graph, bindings.storages);
  Frame frame = frame_of(graph, bindings);
  frame.kind = kind;
  frame.pulse = in_->pulse;
  frame.placer = placer;
  frame.pieces = pieces;
  frame.places = bindings.places;
  ++stats_.begun;
  in_->failed_at.reset();
  DJINN_CHECK(bind_frame(graph, storages, frame));
  Status done = run_steps(graph, storages, frame);
  in_->failed_at = frame.failed_at;
  if (!done) return done;
  return keep_outputs(graph, storages, frame, in_->outputs);
}

Outcome<void> TorchLane::run(Program& program, const RunBindings& bindings) {
  return carry_out([&] { return compute(program, bindings); });
}

Outcome<void> TorchLane::run_once(const Program& program, const RunBindings& bindings) {
  return carry_out([&] { return compute_once(program, bindings); });
}

// Those that have a plan which took nothing but places, as far as their places fit the slab, side
// by side; next time from the first on that it had no room for. What a plan needs beside the slab
// is bounded one run at a time.
std::deque<Together> TorchLane::choose_together(const Program& program,
                                                std::span<const RunTogether> runs) {
  std::deque<Together> chosen;
  uint64_t bytes = 0;
  for (size_t count = 0; count < runs.size(); ++count) {
    const size_t i = (first_together_ + count) % runs.size();
    const RunBindings& bindings = runs[i].bindings;
    if (!bindings.places.empty() || !check_bindings(admitted(program), bindings)) continue;
    Plan* const plan = plans_.find(&program, bucket_top(program.graph(), bindings.symbols));
    const bool is_planned = plan != nullptr && plan->records > 0 && !plan->needs_record &&
                            !plan->in_arena && !plan->is_alone && plan->heap_bytes == 0 &&
                            plan->planned_bytes <= runs[i].owner.bytes_max;
    if (!is_planned) continue;
    chosen.emplace_back(runs[i], *plan, i, no_heap_);
    bytes += plan->planned_bytes;
  }
  const uint64_t room = room_together(bytes);
  first_together_ = 0;
  while (bytes > room) {
    first_together_ = chosen.back().number;
    bytes -= chosen.back().plan->planned_bytes;
    chosen.pop_back();
  }
  return chosen;
}

// Gives how much of the slab there is for so many bytes. A larger one that was refused is not asked
// for again before the lane is trimmed.
uint64_t TorchLane::room_together(uint64_t bytes) {
  const auto has = [&] { return in_->slab ? in_->slab->bytes().size() : 0; };
  if (bytes > has() && bytes < in_->refused_slab_bytes) {
    const Outcome<void> grown = grow_slab(bytes);
    if (grown.has_failed()) in_->refused_slab_bytes = bytes;
  }
  return has();
}

void TorchLane::begin_together(const AdmittedGraph& graph, Together& run, uint64_t offset,
                               Companion& companion) {
  const RunBindings& bindings = run.given->bindings;
  const uint64_t bytes = run.plan->planned_bytes;
  std::span<std::byte> memory;
  if (in_->slab) {
    in_->slab_content.make_clean(in_->slab->bytes(), offset, offset + bytes, run.given->owner.id);
    memory = in_->slab->bytes().subspan(offset, bytes);
  }
  run.storages = storages_of(graph, bindings.storages);
  run.replayer.emplace(*run.plan->placements, memory, run.heap);
  companion.storages = run.storages;
  companion.sink = &*run.replayer;
  companion.heap = &run.heap;
  companion.frame = frame_of(graph, bindings);
  companion.frame.pulse = run.given->pulse;
  const ScopedSink sink(*companion.sink);
  companion.goes_on = bind_frame(graph, run.storages, companion.frame).ok();
}

// Gives whether it has ended well. An output that has to be made for whoever reads it has its place
// in the plan, too.
bool TorchLane::end_together(const AdmittedGraph& graph, Together& run,
                             const Companion& companion) {
  const ScopedHeap heap(run.heap);
  const ScopedSink sink(*run.replayer);
  Outputs& outputs = in_->outputs_together[run.number];
  const bool kept =
      companion.goes_on && catching([&]() -> Status {
                             return keep_outputs(graph, run.storages, companion.frame, outputs);
                           }).ok();
  const bool had_its_plan = run.replayer->fits() && !run.heap.is_refused();
  run.plan->is_alone |= !had_its_plan || companion.has_left;  // another run may have the same plan
  return kept && had_its_plan;
}

std::vector<bool> TorchLane::compute_together(const Program& program,
                                              std::span<const RunTogether> runs) {
  std::vector<bool> done(runs.size(), false);
  std::deque<Together> chosen = choose_together(program, runs);
  if (chosen.size() < 2) return done;
  const AdmittedGraph& graph = admitted(program);
  std::vector<Companion> companions(chosen.size());
  uint64_t offset = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    begin_together(graph, chosen[i], offset, companions[i]);
    offset += chosen[i].plan->planned_bytes;
  }
  run_steps_together(graph, companions);
  in_->outputs_together.resize(runs.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    done[chosen[i].number] = end_together(graph, chosen[i], companions[i]);
  }
  const auto count = static_cast<uint64_t>(std::ranges::count(done, true));
  stats_.runs += count;
  stats_.planned_runs += count;
  stats_.runs_together += count;
  stats_.begun += chosen.size();
  return done;
}

std::vector<bool> TorchLane::run_together(const Program& program,
                                          std::span<const RunTogether> runs) {
  std::vector<bool> done(runs.size(), false);
  if (!options_.planned || device_ != nullptr) return done;
  const Outcome<void> ran = carry_out([&]() -> Outcome<void> {
    c10::InferenceMode inference_mode;
    done = compute_together(program, runs);
    return {};
  });
  if (!ran) done.assign(runs.size(), false);
  return done;
}

std::span<const OutputView> TorchLane::outputs_of(size_t run) const {
  DJINN_ASSERT(run < in_->outputs_together.size());
  return in_->outputs_together[run].views;
}

Outcome<void> TorchLane::carry_out(const std::function<Outcome<void>()>& work) {
  drop_outputs();
  in_->failed_at.reset();
  in_->plan = nullptr;
  if (!outside_) outside_.emplace();
  c10::OptionalStreamGuard on_stream;
  std::optional<ScopedHeap> scope;  // of what the host's kernels take for themselves
  if (device_ != nullptr) {
    on_stream.reset_stream(device_->stream());
  } else {
    scope.emplace(in_->heap);
  }
  if (!aside_) in_->heap.set_others(inner_slab_bytes_ + standing_bytes_);
  Outcome<void> ran = catching([&]() -> Outcome<void> {
    if (device_ != nullptr) {
      DJINN_TRY(const bool is_warm, warm_up());
      if (!is_warm) return {};
    }
    const int threads = options_.threads;
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    use_all_kernels();
    return work();
  });
  auto refusal = in_->heap.take_refusal();
  if (refusal) ran = *std::move(refusal);
  if (!ran) {
    drop_outputs();
    // What it wrote is put back by others. What it failed of first is told.
    const Status ended = wait();
    if (!ended && !ran.has_failed()) ran = ended.error();
  }
  // A refused run may be repeated when more is allowed, and needs what it had as well.
  if (!refusal) in_->heap.settle_if_used();
  return ran;
}

// What libraries keep is not this run's, so its owner's limit does not bound it. Memory for it may
// be on its way, and then the run begins when that is there.
Result<bool> TorchLane::warm_up() {
  is_idle_ = false;
  if (is_warm_) return true;
  Arena none({}, in_->heap);
  const ScopedSink scope(none, where());
  in_->heap.set_limit(UINT64_MAX);
  const Status warmed = catching([&]() -> Status {
    device_->warm_up();
    return {};
  });
  in_->heap.set_limit(in_->owner.bytes_max);
  if (in_->heap.is_refused()) return false;
  DJINN_CHECK(warmed);
  is_warm_ = true;
  standing_bytes_ = device_->memory().live_bytes();
  in_->heap.set_others(inner_slab_bytes_ + standing_bytes_);
  return true;
}

void TorchLane::copy_in(std::span<const std::byte> from, DeviceAddress to) {
  is_idle_ = false;
  if (device_ != nullptr) return device_->copy_in(from, to);
  std::memcpy(to.on_host(), from.data(), from.size());
}

Status TorchLane::copy_out(const OutputView& view, std::span<std::byte> out) {
  if (device_ == nullptr) return copy_elements(view, out);
  DJINN_CHECK(copy_out_of(*device_, view, out));
  is_idle_ = is_idle_ || !out.empty();
  return {};
}

void TorchLane::copy(DeviceAddress from, DeviceAddress to, uint64_t bytes) {
  is_idle_ = false;
  if (device_ != nullptr) return device_->copy(from, to, bytes);
  std::memcpy(to.on_host(), from.on_host(), bytes);
}

Status TorchLane::wait() {
  if (device_ == nullptr || is_idle_) return {};
  DJINN_CHECK(device_->wait());
  is_idle_ = true;
  return {};
}

void TorchLane::copy_past_caches(std::span<const DeviceCopy> copies) {
  is_idle_ = false;
  if (device_ == nullptr) return exec::copy_past_caches(copies);
  for (const DeviceCopy& one : copies) device_->copy(one.from, one.to, one.bytes);
}

void TorchLane::set_owner(const LaneOwner& owner) {
  in_->owner = owner;
  in_->heap.set_limit(owner.bytes_max);
}

Outcome<HeapBytes> TorchLane::allocate(uint64_t bytes) {
  return take_heap(bytes, Content::kAny);
}

Outcome<HeapBytes> TorchLane::take_heap(uint64_t bytes, Content content) {
  auto memory = catching(
      [&]() -> Outcome<HeapBytes> { return in_->heap.own(in_->heap.allocate(bytes, content)); });
  if (auto refusal = in_->heap.take_refusal()) return *std::move(refusal);
  return memory;
}

void TorchLane::forget(const Program& program) {
  plans_.forget(&program);
  if (device_ != nullptr) device_->pieces().forget(admitted(program));
}

void TorchLane::trim() {
  drop_outputs();
  drop_inner_slab();
  outer_.refused_slab_bytes = inner_.refused_slab_bytes = UINT64_MAX;
  if (device_ != nullptr) device_->pieces().drop();
  if (!wait()) return;  // of a device that is lost nobody has anything more
  in_->heap.trim();
}

// --- runs inside a pause

void TorchLane::pause() {
  DJINN_ASSERT(!aside_ && outside_);
  aside_.emplace(*outside_, outer_.heap.live_bytes_there());
  plans_.keep(outer_.plan);
  in_ = &inner_;
  inner_.heap.set_others(aside_->live_bytes);
}

// What those inside have left on the heap, where copies of their inputs are, is not this run's.
void TorchLane::resume() {
  DJINN_ASSERT(aside_);
  drop_outputs();
  inner_.pulse = nullptr;
  const uint64_t before = aside_->live_bytes, now = outer_.heap.live_bytes_there();
  const uint64_t others = outer_.heap.others() + now;
  outer_.heap.set_others(others - std::min(others, before));
  in_ = &outer_;
  plans_.keep(nullptr);
  aside_.reset();
  use_all_kernels();
}

Status check_options(const LaneOptions& options) {
  if (options.threads >= 1 && (!options.planned || options.grow_slab)) return {};
  return Error{ErrorCode::kInvalidArgument, "A lane needs a thread and memory for its slab."};
}

}  // namespace

Result<std::unique_ptr<Lane>> CpuExecutor::make_lane(LaneOptions options) {
  DJINN_CHECK(check_options(options));
  DJINN_ASSERT(!options.planned || is_allocator_installed());
  return std::unique_ptr<Lane>(new TorchLane(nullptr, std::move(options)));
}

Result<std::unique_ptr<Lane>> make_lane_on(std::unique_ptr<LaneDevice> device,
                                           LaneOptions options) {
  DJINN_CHECK(check_options(options));
  DJINN_ASSERT(!options.planned || is_device_memory_installed());
  return std::unique_ptr<Lane>(new TorchLane(std::move(device), std::move(options)));
}

}  // namespace djinn::exec
