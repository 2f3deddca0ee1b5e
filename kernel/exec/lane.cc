// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstring>
#include <optional>

#include "kernel/base/assert.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/bindings.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/executor.h"
#include "kernel/exec/inference.h"
#include "kernel/exec/interpreter.h"
#include "kernel/exec/plan_cache.h"
#include "kernel/exec/program.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

namespace {

// What allocations of differing sizes leave unused between them, of what they use.
constexpr uint64_t kGapsOneIn = 4;
// What kernels take beside their results, such as a number as a tensor: no estimate knows of it.
constexpr uint64_t kAsideBytes = uint64_t{64} << 10;

class UnboundedHeap final : public HeapOwner {
  Status allow(uint64_t) override { return {}; }
  void settle(uint64_t) override {}
};

// What the slab holds, so that no run reads what a run of another owner left.
//
// invariant: bytes in [clean, foreign) may be of others; those before clean are the owner's or
// zeros, those beyond both are zeros or were never given to a run.
struct SlabContent {
  uint64_t clean = 0;
  uint64_t foreign = 0;

  void change_owner() {
    foreign = std::max(foreign, clean);
    clean = 0;
  }
  // Before a run of the owner that may use so many bytes; costs nothing from the second on.
  void make_clean(std::span<std::byte> slab, uint64_t bytes) {
    if (bytes <= clean) return;
    const uint64_t end = std::min(bytes, foreign);
    if (end > clean) std::memset(slab.data() + clean, 0, end - clean);
    clean = bytes;
  }
};

}  // namespace

struct Lane::Impl {
  explicit Impl(LaneOptions given) : options(std::move(given)) {}

  LaneOptions options;
  UnboundedHeap unbounded;
  Heap heap{options.heap ? *options.heap : unbounded};
  LaneStats stats;
  PlanCache plans;
  std::optional<RegisteredSlab> slab;
  std::optional<RegisteredSlab> places;  // of kept outputs
  SlabContent slab_content;
  LaneOwner owner;
  std::vector<at::Tensor> kept;  // what outputs points into
  std::vector<OutputView> outputs;
  std::function<bool(std::string_view)> pulse;

  Status run(const Program& program, const RunBindings& bindings);
  Status run_once(const Program& program, const RunBindings& bindings);
  [[nodiscard]] Status check_size(const Program& program) const;
  void drop_outputs();

 private:
  Status run_planned(const Program& program, const RunBindings& bindings);
  Status rehearse(const Program::Impl& program, std::vector<int64_t> symbols, Plan& plan);
  Status record(const Program::Impl& program, const RunBindings& bindings, Plan& plan);
  Status replay(const Program::Impl& program, const RunBindings& bindings, Plan& plan);
  Status reserve(uint64_t bytes);
  Result<std::span<std::byte>> room_for(const Program::Impl& program, const RunBindings& bindings);
  void register_places(std::span<const OutputPlace> all);
  Status execute_on(Sink& sink, const Program::Impl& program, const RunBindings& bindings);
  Status execute(const Program::Impl& program, const RunBindings& bindings,
                 Placer* placer = nullptr);
  Status keep_outputs(const Program::Impl& program, std::span<const c10::Storage> storages,
                      const Frame& frame);
};

namespace {

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

}  // namespace

void Lane::Impl::drop_outputs() {
  outputs.clear();
  kept.clear();
  places.reset();
}

Status Lane::Impl::check_size(const Program& program) const {
  // Without symbols the estimate is of this very run.
  const uint64_t estimate = program.activation_bytes_estimate();
  if (!program.graph().symbols.empty() || estimate <= owner.bytes_max) return {};
  return over_limit(estimate, owner.bytes_max);
}

Status Lane::Impl::run_once(const Program& program, const RunBindings& bindings) {
  c10::InferenceMode inference_mode;
  DJINN_CHECK(check_bindings(program.impl(), bindings));
  DJINN_CHECK(check_size(program));
  std::span<std::byte> memory;
  if (options.planned) {
    DJINN_TRY(memory, room_for(program.impl(), bindings));
  }
  ++stats.runs;
  stats.planned_bytes = memory.size();
  stats.peak_live_bytes = 0;
  Arena arena(memory, heap);
  return execute_on(arena, program.impl(), bindings);
}

// Of the slab, clean: what a run without symbols takes, at most, as its allocations come.
Result<std::span<std::byte>> Lane::Impl::room_for(const Program::Impl& program,
                                                  const RunBindings& bindings) {
  const bool placed =
      !bindings.places.empty() &&
      std::ranges::all_of(bindings.places, [](const OutputPlace& one) { return one.bytes > 0; });
  const uint64_t estimate = placed ? program.passing_bytes : program.activation_bytes;
  const uint64_t bytes = estimate + estimate / kGapsOneIn + kAsideBytes;
  DJINN_CHECK(reserve(bytes));
  if (!slab) return std::span<std::byte>();
  const auto memory = slab->bytes().first(std::min<uint64_t>(bytes, slab->bytes().size()));
  slab_content.make_clean(memory, memory.size());
  return memory;
}

Status Lane::Impl::run(const Program& program, const RunBindings& bindings) {
  c10::InferenceMode inference_mode;
  DJINN_CHECK(check_bindings(program.impl(), bindings));
  DJINN_CHECK(check_size(program));
  ++stats.runs;
  return options.planned ? run_planned(program, bindings) : execute(program.impl(), bindings);
}

// A bucket's first run rehearses at the bucket's top: what fits there fits every run. A rehearsal
// that fails, as zeros may be no legal input, leaves it to the run itself to be recorded, as do
// programs without symbols, whose runs are all at the top.
Status Lane::Impl::run_planned(const Program& program, const RunBindings& bindings) {
  std::vector<int64_t> top = bucket_top(program.graph(), bindings.symbols);
  Plan& plan = plans.plan(&program, top);
  if (plan.records == 0 && !top.empty()) {
    respect_capacity(program.graph(), top);
    const Status rehearsed = rehearse(program.impl(), std::move(top), plan);
    if (!rehearsed && rehearsed.error().code == ErrorCode::kOutOfMemory) return rehearsed.error();
  }
  if (plan.needs_record) return record(program.impl(), bindings, plan);
  return replay(program.impl(), bindings, plan);
}

Status Lane::Impl::rehearse(const Program::Impl& program, std::vector<int64_t> symbols,
                            Plan& plan) {
  DJINN_TRY(const Scratch scratch, Scratch::make(program, symbols));
  DJINN_CHECK(record(program, {symbols, scratch.bindings()}, plan));
  drop_outputs();
  return {};
}

Status Lane::Impl::record(const Program::Impl& program, const RunBindings& bindings, Plan& plan) {
  std::span<std::byte> memory;
  if (bindings.symbols.empty()) {
    DJINN_TRY(memory, room_for(program, bindings));
  }
  Arena arena(memory, heap);
  Recorder recorder(arena);
  DJINN_CHECK(execute_on(recorder, program, bindings));
  if (heap.is_refused()) return {};  // a kernel may go on without, in another way: run() fails it
  plan.learn(recorder.finish());
  ++stats.plan_records;
  stats.planned_bytes = plan.planned_bytes;
  stats.peak_live_bytes = recorder.peak_live_bytes();
  return {};
}

Status Lane::Impl::replay(const Program::Impl& program, const RunBindings& bindings, Plan& plan) {
  DJINN_CHECK(reserve(plan.planned_bytes));
  if (slab) slab_content.make_clean(slab->bytes(), plan.planned_bytes);
  Replayer replayer(plan.placements, slab ? slab->bytes() : std::span<std::byte>(), heap);
  const Status status = execute_on(replayer, program, bindings);
  if (heap.is_refused())
    return status;  // nothing is known yet; the run is repeated, or was too large
  if (replayer.fits()) {
    ++stats.planned_runs;
  } else {
    ++stats.plan_misses;
    plan.needs_record = plan.records < kRecordsMax;
  }
  stats.planned_bytes = plan.planned_bytes;
  stats.peak_live_bytes = replayer.peak_live_bytes();
  return status;
}

Status Lane::Impl::reserve(uint64_t bytes) {
  if (bytes == 0 || (slab && slab->bytes().size() >= bytes)) return {};
  if (bytes > owner.bytes_max) return over_limit(bytes, owner.bytes_max);
  DJINN_TRY(const std::span<std::byte> memory, options.grow_slab(bytes));
  DJINN_ASSERT(memory.size() >= bytes && reinterpret_cast<uintptr_t>(memory.data()) % 64 == 0);
  slab.reset();
  slab.emplace(memory);
  slab_content = {};
  return {};
}

// LibTorch's deleter has to know that places are not its own to free.
void Lane::Impl::register_places(std::span<const OutputPlace> all) {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  for (const OutputPlace& one : all) {
    if (one.bytes == 0) continue;
    begin = begin == nullptr ? one.data : std::min(begin, one.data);
    end = std::max(end, one.data + one.bytes);
  }
  if (begin != nullptr) places.emplace(std::span(begin, end));
}

Status Lane::Impl::execute_on(Sink& sink, const Program::Impl& program,
                              const RunBindings& bindings) {
  register_places(bindings.places);
  Placer placer(sink);
  ScopedSink scope(placer);
  return execute(program, bindings, bindings.places.empty() ? nullptr : &placer);
}

Status Lane::Impl::execute(const Program::Impl& program, const RunBindings& bindings,
                           Placer* placer) {
  const std::vector<c10::Storage> storages = storages_of(program, bindings.storages);
  Frame frame;
  frame.symbols = bindings.symbols;
  frame.pulse = pulse;
  frame.placer = placer;
  frame.places = bindings.places;
  ++stats.begun;
  DJINN_CHECK(bind_frame(program, storages, frame));
  DJINN_CHECK(run_steps(program, storages, frame));
  return keep_outputs(program, storages, frame);
}

Status Lane::Impl::keep_outputs(const Program::Impl& program,
                                std::span<const c10::Storage> storages, const Frame& frame) {
  for (const srg::ValueId id : program.graph.outputs) {
    if (!frame.values[id].defined()) {
      return Error{ErrorCode::kInvalidArgument, "An output is a result that its node left out."};
    }
    // Bytes that mean their conjugate or negative are another tensor's to whoever reads them.
    const at::Tensor tensor = frame.values[id].resolve_conj().resolve_neg();
    if (from_torch(tensor.scalar_type()) == DType::kInvalid) {
      return Error{ErrorCode::kUnsupported, "An output has a dtype that does not leave a run."};
    }
    kept.push_back(tensor);
    outputs.push_back(view_of_output(tensor, storages));
  }
  return {};
}

Lane::Lane(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Lane::~Lane() = default;

Result<std::unique_ptr<Lane>> Lane::make(LaneOptions options) {
  if (options.threads < 1 || (options.planned && !options.grow_slab)) {
    return Error{ErrorCode::kInvalidArgument, "A lane needs a thread and memory for its slab."};
  }
  DJINN_ASSERT(!options.planned || is_allocator_installed());
  return std::unique_ptr<Lane>(new Lane(std::make_unique<Impl>(std::move(options))));
}

Status Lane::check_size(const Program& program) const {
  return impl_->check_size(program);
}

Status Lane::run(Program& program, const RunBindings& bindings) {
  return carry_out([&] { return impl_->run(program, bindings); });
}

Status Lane::run_once(const Program& program, const RunBindings& bindings) {
  return carry_out([&] { return impl_->run_once(program, bindings); });
}

Status Lane::carry_out(const std::function<Status()>& run) {
  impl_->drop_outputs();
  Status status = catching([&]() -> Status {
    const int threads = impl_->options.threads;
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    // ATen turns oneDNN off for the process when one of its matrix products is refused memory; the
    // run is repeated, and other kernels would give other bits in it and in all that follow.
    at::globalContext().setUserEnabledMkldnn(true);
    return run();
  });
  auto refusal = impl_->heap.take_refusal();
  if (refusal) status = *std::move(refusal);
  if (!status) impl_->drop_outputs();
  // A refused run may be repeated when more is allowed, and needs what it had as well.
  if (!refusal) impl_->heap.settle_if_used();
  return status;
}

std::span<const OutputView> Lane::outputs() const {
  return impl_->outputs;
}
LaneStats Lane::stats() const {
  return impl_->stats;
}
void Lane::set_owner(const LaneOwner& owner) {
  if (owner.id != impl_->owner.id) impl_->slab_content.change_owner();
  impl_->owner = owner;
  impl_->heap.set_limit(owner.bytes_max);
}
void Lane::set_pulse(std::function<bool(std::string_view)> pulse) {
  impl_->pulse = std::move(pulse);
}
Result<HeapBytes> Lane::allocate(uint64_t bytes) {
  auto memory = catching([&]() -> Result<HeapBytes> {
    return HeapBytes(static_cast<std::byte*>(impl_->heap.allocate(bytes, Content::kAny)));
  });
  if (auto refusal = impl_->heap.take_refusal()) return *std::move(refusal);
  return memory;
}
void HeapDeleter::operator()(std::byte* memory) const {
  release(memory);
}
void Lane::trim() {
  impl_->drop_outputs();
  impl_->heap.settle();
}
void Lane::forget(const Program& program) {
  impl_->plans.forget(&program);
}

}  // namespace djinn::exec
