// SPDX-License-Identifier: Apache-2.0

#include "python/device/link.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ipc/binding.h"
#include "ipc/codec/srg_codec.h"
#include "kernel/base/bytes.h"
#include "kernel/base/size_text.h"
#include "kernel/exec/convert.h"
#include "libdjinn-client/transfer.h"
#include "python/device/interruption.h"
#include "python/device/opened_models.h"

namespace djinn::device {
namespace {

constexpr uint64_t kStagingBytes = uint64_t{32} << 20;
// Larger weights are read in parts of this size, with one run for each.
constexpr uint64_t kPartBytes = kStagingBytes / 4;
// A graph that comes in this many logs is defined, and runs by its id from then on. One that comes
// often in a single log may never come again: an optimizer's step has its number in it.
constexpr uint32_t kSightsToDefine = 3;
// Graphs that are known but not defined are limited: those that change with each step would pile
// up.
constexpr size_t kKnownMax = 4096;
// This process defines at most half of the programs that a user may have, because the user's other
// processes want some, too. ProgramUse is the index: some uses must leave room for others.
constexpr size_t kProgramsMax[] = {limits::kProgramsPerUser / 4, limits::kProgramsPerUser * 3 / 8,
                                   limits::kProgramsPerUser / 2};

// An error shows at most this many shapes, because an operator such as cat may have hundreds of
// arguments.
constexpr size_t kShapesShown = 6;

// djinnctl sessions shows the name of the program that this process runs.
std::string own_name() {
  return program_invocation_short_name;
}

class Stopwatch {
 public:
  explicit Stopwatch(uint64_t& total) : total_(total) {}
  ~Stopwatch() {
    total_ += static_cast<uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count());
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  uint64_t& total_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

uint64_t bytes_of(const Operand& view) {
  return dense_bytes(view.sizes, view.type);
}

// Gives the bytes of a result whose sizes are known, else 0.
uint64_t bytes_of(const srg::Value& value) {
  uint64_t bytes = value.claims_sizes ? size_of(value.dtype) : 0;
  for (const srg::Expr& size : value.sizes) {
    if (!size.is_constant()) return 0;
    bytes *= static_cast<uint64_t>(size.constant);
  }
  return bytes;
}

Largest largest_in(const srg::Graph& graph) {
  Largest largest;
  largest.operators = graph.nodes.size();
  for (const srg::Node& node : graph.nodes) {
    for (const srg::ValueId id : node.outputs) {
      const srg::Value& value = graph.values[id];
      const uint64_t bytes = bytes_of(value);
      if (bytes <= largest.bytes) continue;
      largest.op = node.op;
      largest.dtype = value.dtype;
      largest.bytes = bytes;
      largest.sizes.clear();
      for (const srg::Expr& size : value.sizes) largest.sizes.push_back(size.constant);
    }
  }
  return largest;
}

std::string text_of(const Largest& largest) {
  if (largest.bytes == 0) return {};
  return fmt::format(" Of {} operators of that run the largest result is that of {}: {}[{}], {}.",
                     largest.operators, largest.op, name_of(largest.dtype),
                     fmt::join(largest.sizes, ", "), size_text(largest.bytes));
}

template <typename T>
const T* argument_of(const srg::Node& node, size_t position) {
  return position < node.arguments.size() ? std::get_if<T>(&node.arguments[position].value)
                                          : nullptr;
}

std::string shape_of(DType dtype, std::span<const srg::Expr> exprs) {
  c10::SmallVector<int64_t, 5> sizes;
  for (const srg::Expr& size : exprs) sizes.push_back(size.constant);
  return fmt::format("{}{}[{}]", dtype == DType::kInvalid ? "" : name_of(dtype),
                     dtype == DType::kInvalid ? "" : " ", fmt::join(sizes, ", "));
}

// Values that GraphWriter adds to the recorded ones claim no type and no sizes.
bool is_told(const srg::Value& value) {
  return value.storage != srg::kLocalStorage || value.claims_sizes;
}

const srg::Node& maker_of(const srg::Graph& graph, srg::ValueId id) {
  return *std::ranges::find_if(
      graph.nodes, [&](const srg::Node& node) { return std::ranges::count(node.outputs, id) > 0; });
}

// Gives the type of a value, as far as it is known before a run. A view has that of its base.
DType dtype_of(const srg::Graph& graph, srg::ValueId id) {
  while (!is_told(graph.values[id])) {
    const srg::Node& node = maker_of(graph, id);
    if (const auto* const dtype = argument_of<DType>(node, 1)) return *dtype;
    const auto* const base = argument_of<srg::ValueRef>(node, 0);
    if (base == nullptr) return DType::kInvalid;
    id = base->id;
  }
  return graph.values[id].dtype;
}

// Gives the type and sizes of a value, as far as they are known before a run.
std::string shape_of(const srg::Graph& graph, srg::ValueId id) {
  const srg::Value& value = graph.values[id];
  if (is_told(value)) return shape_of(value.dtype, value.sizes);
  const srg::Node& node = maker_of(graph, id);
  const auto* const sizes = argument_of<srg::ExprList>(node, node.op == "aten::as_strided" ? 1 : 0);
  if (sizes == nullptr) return "[?]";
  return shape_of(dtype_of(graph, id), sizes->items);
}

// Gives, for example, "aten::embedding (float32 [4, 2], int64 [1]), which gives float32 [1, 2], 8
// bytes: why".
std::string text_of(const srg::Graph& graph, const srg::Node& node, std::string_view why) {
  std::vector<std::string> shapes;
  const auto add = [&](srg::ValueId id) { shapes.push_back(shape_of(graph, id)); };
  for (const srg::Argument& argument : node.arguments) {
    if (const auto* one = std::get_if<srg::ValueRef>(&argument.value)) add(one->id);
    if (const auto* list = std::get_if<srg::ValueList>(&argument.value)) {
      for (const auto& id : list->ids) {
        if (id) add(*id);
      }
    }
  }
  if (shapes.size() > kShapesShown) {
    shapes.resize(kShapesShown);
    shapes.emplace_back("...");
  }
  std::string text = fmt::format("{} ({})", node.op, fmt::join(shapes, ", "));
  if (!node.outputs.empty() && bytes_of(graph.values[node.outputs[0]]) > 0) {
    text += fmt::format(", which gives {}, {}", shape_of(graph, node.outputs[0]),
                        size_text(bytes_of(graph.values[node.outputs[0]])));
  }
  const std::string named = node.op + ": ";  // as an operator's own errors begin
  if (why.starts_with(named)) why.remove_prefix(named.size());
  const bool is_of_dtype = why.find("not implemented for '") != std::string_view::npos;
  return fmt::format("{}: {}{}", text, why,
                     is_of_dtype ? ". Convert its arguments to another dtype first, such as "
                                   "float32; PyTorch has no kernel for this one on a CPU."
                                 : "");
}

}  // namespace

bool lacked_memory(ErrorCode code) {
  return code == ErrorCode::kOutOfMemory || code == ErrorCode::kQuotaExceeded;
}

client::ConnectOptions Link::connect_options() {
  client::ConnectOptions options;
  options.name = own_name();
  options.staging_bytes = kStagingBytes;
  options.given_up = &CtrlC::ends_wait;
  return options;
}

// --- runs

void Link::reap() {
  [[maybe_unused]] const auto polled = client_->poll();
  while (!unwaited_.empty() && client_->is_complete(unwaited_.front().run)) {
    [[maybe_unused]] const Status taken = take_oldest();  // which waits for nothing
  }
}

// A session that has ended leaves nothing to wait for. That is no error here: whoever uses what the
// run made gets one.
Status Link::take_oldest() {
  auto outcome = client_->wait(unwaited_.front().run);
  if (!outcome && outcome.error().code == ErrorCode::kCancelled) return std::move(outcome).error();
  Unwaited oldest = std::move(unwaited_.front());
  unwaited_.pop_front();
  if (!outcome) return {};
  if (outcome->error != ErrorCode::kOk) {
    note_failure(*outcome, std::move(oldest));
  } else if (!failure_) {
    Held::note(oldest.held);
  }
  return {};
}

// A release makes nothing, so its failure concerns nobody.
void Link::note_failure(const client::Outcome& outcome, Unwaited run) {
  ++stats_.failures;
  if (outcome.error != ErrorCode::kPoisoned) {
    stats_.last_failure = told(outcome, run);
    stats_.last_code = outcome.error;
  }
  if (!run.is_release && !failure_) {
    const bool is_first = outcome.error != ErrorCode::kPoisoned;
    failure_ = Error{outcome.error, is_first ? stats_.last_failure : outcome.message};
  }
  const std::vector<uint64_t>& numbers = run.made.numbers;
  if (!failed_at_ && !numbers.empty()) {
    const bool is_known = outcome.failed_node > 0 && outcome.failed_node <= numbers.size();
    failed_at_ = is_known ? numbers[outcome.failed_node - 1] : numbers.front();
  }
  failed_.push_back(std::move(run.made));
}

// Says what failed, with which shapes, and why.
std::string Link::told(const client::Outcome& outcome, const Unwaited& run) const {
  size_t number = outcome.failed_node;
  const std::vector<uint64_t>& entries = run.made.numbers;
  if (number != 0 && number <= entries.size()) {
    // An entry's operator is the last of its nodes.
    while (number < entries.size() && entries[number] == entries[number - 1]) ++number;
    return text_of(run.graph, run.graph.nodes[number - 1], outcome.message);
  }
  if (!lacked_memory(outcome.error)) return outcome.message;
  const auto defined = defined_.find(run.program.value);
  return outcome.message +
         text_of(defined == defined_.end() ? largest_in(run.graph) : defined->second.largest);
}

void Link::note(Unwaited run) {
  unwaited_.push_back(std::move(run));
  if (unwaited_.size() >= 16) reap();
}

Result<client::Outcome> Link::wait(client::Run run) {
  const Stopwatch watch(stats_.wait_ns);
  return client::finish(*client_, run);
}

// --- failures

bool Link::is_idle() {
  return is_done_through(client_->last_run());
}

bool Link::has_failure() {
  reap();
  return failure_.has_value();
}

Error Link::settle_failure() {
  DJINN_ASSERT(failure_ && unwaited_.empty());
  const Interruption::Deferred whole;  // a part of it settled would be nothing
  ++series_;
  const Error failure = *std::exchange(failure_, std::nullopt);
  const auto shared = std::make_shared<const Error>(
      lacked_memory(failure.code) ? failure.code : ErrorCode::kPoisoned,
      "This value was not computed, because an earlier operator failed in djinnd: " +
          failure.message);
  for (const Made& made : std::exchange(failed_, {})) settle(made, shared);
  failed_at_.reset();
  storages().forget_shadows();
  storages().note_move();
  return failure;
}

void Link::settle(const Made& made, const std::shared_ptr<const Error>& failure) {
  for (size_t i = 0; i < made.outputs.size(); ++i) {
    const StoragePtr storage = made.outputs[i].lock();
    if (!storage || storage->location != Location::kRef) continue;
    const auto before = std::ranges::find(made.before, i, &Before::output);
    const bool was = before != made.before.end() && is_as_before(*storage, *before);
    const bool is_blank = before != made.before.end() && !before->weight;
    const bool is_unwritten = is_blank && failed_at_ && before->written >= *failed_at_;
    if ((was || !is_unwritten) && is_made(*storage)) continue;
    storages().discard(storage->ref);
    lose(*storage, failure);
    if (made.uploaded) {
      storage->location = Location::kHost;
      storage->host = made.uploaded;
    } else if (was) {
      storage->location = before->weight ? Location::kWeight : Location::kZero;
      storage->named = before->weight;
    }
  }
}

// Bytes that nobody had written count as the program's if the failed operator came after the tensor
// was made, unless the tensor was made only for the next operator to fill, as a copy is.
bool Link::is_as_before(const Storage& storage, const Before& before) const {
  if (before.weight) return true;
  return storage.born != before.written && failed_at_ && storage.born <= *failed_at_;
}

// A part of a failed run may have been done. Reading the ref shows whether it was made.
bool Link::is_made(const Storage& storage) {
  std::byte first{};
  ipc::ReadBlock block;
  block.ref = storage.ref;
  block.dtype = DType::kUInt8;
  block.sizes = {1};
  block.strides = {1};
  return client::read(*client_, block, std::span(&first, 1)).ok();
}

// --- binding

Result<std::vector<client::RefLease>> Link::bind(const Segment& segment, ipc::RunBlock& block) {
  for (uint32_t i = 0; i < segment.inputs.size(); ++i) {
    if (segment.inputs[i] == nullptr) continue;
    block.inputs.push_back({i, ipc::InputKind::kRef, {}, segment.inputs[i]->ref});
  }
  return bind_outputs(segment.outputs.size(), block);
}

Result<std::vector<client::RefLease>> Link::bind_outputs(size_t count, ipc::RunBlock& block) {
  std::vector<client::RefLease> refs;
  for (size_t i = 0; i < count; ++i) {
    DJINN_TRY(client::RefLease ref, client_->new_ref());
    block.outputs.push_back({ipc::OutputKind::kRef, {}, ref.ref()});
    refs.push_back(std::move(ref));
  }
  return refs;
}

// From here on the outputs' refs exist, and later submissions may name them.
Status Link::submit_run(client::Runnable runnable, const ipc::RunBlock& block,
                        std::span<const StoragePtr> outputs, std::vector<client::RefLease> refs,
                        std::vector<client::StagingLease> staged, Unwaited unwaited) {
  unwaited.program = runnable.program;
  runnable.series = series_;
  DJINN_TRY(unwaited.run,
            client::submit_run(*client_, std::move(runnable), block, {.read = std::move(staged)}));
  for (size_t i = 0; i < outputs.size(); ++i) {
    become_ref(*outputs[i], std::move(refs[i]).detach());
    unwaited.made.outputs.push_back(outputs[i]);
  }
  unwaited.held = Held::now();
  note(std::move(unwaited));
  return {};
}

namespace {

// A graph of operators that are run one by one is exact, but for weights that fast kernels alone
// can read.
srg::Graph as_definable(const srg::Graph& graph, ModelId model, ProgramUse use) {
  srg::Graph made = graph;
  if (use == ProgramUse::kOften && !formed_weights_of(model.value, graph).empty()) {
    made.numerics = srg::Numerics::kFast;
  }
  return made;
}

}  // namespace

Result<ProgramId> Link::define(const srg::Graph& graph, ModelId model, ProgramUse use) {
  if (defined_.size() >= kProgramsMax[static_cast<size_t>(use)]) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("djinnd keeps {} programs for this process, and takes no more of this "
                             "sort. Those of a model go with the model.",
                             defined_.size())};
  }
  auto made = client_->define_program(as_definable(graph, model, use), model);
  full_ = !made && made.error().code == ErrorCode::kLimitExceeded;
  if (!made) return std::move(made).error();
  defined_.emplace(made->program.value, Defined{model.value, largest_in(graph)});
  return made->program;
}

Link::Known& Link::look_at(uint64_t hash, uint64_t model, uint64_t log) {
  if (programs_.size() >= kKnownMax + defined_.size()) {
    std::erase_if(programs_, [&](const auto& one) {
      return !one.second.program.valid() && one.second.log != log_;
    });
  }
  Known& known = programs_[hash];
  known.model = model;
  if (std::exchange(known.log, log) != log) ++known.uses;
  return known;
}

Result<client::Runnable> Link::runnable_for(const Segment& segment, uint64_t log) {
  const std::vector<std::byte> graph = ipc::encode(segment.graph);
  const ModelId model{segment.model};
  Known& known =
      look_at(XXH3_64bits_withSeed(graph.data(), graph.size(), segment.model), segment.model, log);
  if (known.uses >= kSightsToDefine && !known.program.valid() && !full_) {
    auto defined = define(segment.graph, model, ProgramUse::kOften);
    if (!defined && defined.error().code != ErrorCode::kLimitExceeded) {
      return std::move(defined).error();
    }
    if (defined) known.program = *defined;  // else it goes on crossing with each run
  }
  if (known.program.valid()) {
    ++stats_.program_runs;
    return client::Runnable{known.program, {}, {}};
  }
  DJINN_TRY(client::StagingLease staged, client_->stage(graph));
  return client::Runnable{{}, model, std::move(staged)};
}

Status Link::run(Segment segment) {
  const Stopwatch watch(stats_.schedule_ns);
  ++stats_.runs;
  stats_.operators += segment.operators;
  DJINN_TRY(client::Runnable runnable, runnable_for(segment, log_));
  ipc::RunBlock block;
  DJINN_TRY(auto refs, bind(segment, block));
  Unwaited unwaited;
  unwaited.made.before = std::move(segment.before);
  unwaited.made.numbers = std::move(segment.numbers);
  unwaited.graph = std::move(segment.graph);
  return submit_run(std::move(runnable), block, segment.outputs, std::move(refs), {},
                    std::move(unwaited));
}

Result<client::StagingLease> Link::stage(std::span<const std::byte> bytes) {
  stats_.bytes_up += bytes.size();
  return client_->stage(bytes);
}

Status Link::run_program(ProgramId program, ipc::RunBlock block,
                         std::span<const StoragePtr> outputs,
                         std::vector<client::StagingLease> staged) {
  const Stopwatch watch(stats_.schedule_ns);
  ++stats_.runs;
  ++stats_.program_runs;
  DJINN_TRY(auto refs, bind_outputs(outputs.size(), block));
  return submit_run({program, {}, {}}, block, outputs, std::move(refs), std::move(staged), {});
}

Result<std::vector<Described>> Link::run_open(const Segment& segment) {
  ++stats_.runs;
  stats_.operators += segment.operators;
  DJINN_TRY(client::Runnable runnable, runnable_for(segment, begin_log()));
  ipc::RunBlock block;
  DJINN_TRY(auto refs, bind(segment, block));
  const uint64_t bytes = segment.outputs.size() * sizeof(ipc::OutputDescription);
  DJINN_TRY(client::StagingLease result, client_->allocate_staging(bytes));
  block.result = result.range();
  DJINN_TRY(const client::Run run,
            client::submit_run(*client_, std::move(runnable), block,
                               {.written = client::list_of(std::move(result))}));
  DJINN_TRY(const client::Outcome outcome, wait(run));
  std::vector<Described> described;
  for (size_t i = 0; i < refs.size(); ++i) {
    DJINN_TRY(const ipc::OutputDescription shape,
              ipc::decode_description(outcome.written.front().bytes(), i));
    described.push_back({std::move(refs[i]), shape});
  }
  return described;
}

Status Link::release(std::span<const RefHandle> refs) {
  DJINN_TRY(const client::Run run, client::submit_release(*client_, refs));
  note({.run = run, .is_release = true});
  return {};
}

Status Link::wait_for_all() {
  return wait_through(client_->last_run());
}

Status Link::wait_through(client::Run run) {
  while (!unwaited_.empty() && unwaited_.front().run <= run) DJINN_CHECK(take_oldest());
  return {};
}

bool Link::is_done_through(client::Run run) {
  reap();
  return unwaited_.empty() || unwaited_.front().run > run;
}

Status Link::close_model(ModelId model) {
  std::erase_if(programs_, [&](const auto& one) { return one.second.model == model.value; });
  std::erase_if(defined_, [&](const auto& one) { return one.second.model == model.value; });
  full_ = false;
  return client_->close_model(model);
}

// --- up

Status Link::put(Storage& storage, HostBytes bytes) {
  stats_.bytes_up += bytes->size();
  DJINN_TRY(client::RefLease ref, client_->new_ref());
  DJINN_CHECK(client::submit_write(*client_, ref.ref(), *bytes, [&](client::Run run) -> Status {
    unwaited_.push_back({.run = run});
    return {};
  }));
  become_ref(storage, std::move(ref).detach());
  unwaited_.back().held = Held::now();
  unwaited_.back().made = {{storage.weak_from_this()}, {}, {}, std::move(bytes)};
  if (unwaited_.size() >= 16) reap();
  return {};
}

// --- down

Status Link::read(const Operand& view, std::span<std::byte> out, uint64_t log) {
  const uint64_t bytes = bytes_of(view);
  DJINN_ASSERT(bytes == out.size());
  if (bytes == 0) return {};
  const bool is_weight = view.storage->location == Location::kWeight;
  DJINN_CHECK(is_weight ? read_weight(view, out, log) : read_ref(view, out));
  ++stats_.reads;
  stats_.bytes_down += bytes;
  return {};
}

Status Link::read_ref(const Operand& view, std::span<std::byte> out) {
  const Stopwatch watch(stats_.wait_ns);
  ipc::ReadBlock block;
  block.ref = view.storage->ref;
  block.dtype = exec::from_torch(view.type);
  block.sizes.assign(view.sizes.begin(), view.sizes.end());
  block.strides.assign(view.strides.begin(), view.strides.end());
  block.offset = static_cast<uint64_t>(view.offset);
  return client::read(*client_, block, out);
}

// A part is half of the rows of the first dimension of more than one row, which are contiguous in
// `out`.
Status Link::read_weight(const Operand& view, std::span<std::byte> out, uint64_t log) {
  if (out.size() > kPartBytes) {
    size_t d = 0;
    while (view.sizes[d] == 1) ++d;
    Operand low = view;
    Operand high = view;
    low.sizes[d] = view.sizes[d] / 2;
    high.sizes[d] = view.sizes[d] - low.sizes[d];
    high.offset += low.sizes[d] * view.strides[d];
    DJINN_CHECK(read_weight(low, out.first(bytes_of(low)), log));
    return read_weight(high, out.subspan(bytes_of(low)), log);
  }
  DJINN_TRY(const client::StagingLease staged, read_to_staging(view, out.size(), log));
  copy_bytes(staged.bytes(), out);
  return {};
}

Result<client::StagingLease> Link::read_to_staging(const Operand& view, uint64_t bytes,
                                                   uint64_t log) {
  DJINN_TRY(client::StagingLease staged, client_->allocate_staging(bytes));
  DJINN_TRY(client::Runnable runnable, runnable_for(copy_segment(view), log));
  ipc::RunBlock block;
  block.outputs.push_back({ipc::OutputKind::kStaging, staged.range(), {}});
  DJINN_TRY(const client::Run run,
            client::submit_run(*client_, std::move(runnable), block,
                               {.written = client::list_of(std::move(staged))}));
  DJINN_TRY(client::Outcome outcome, wait(run));
  return std::move(outcome.written.front());
}

}  // namespace djinn::device
